//! `dfq profile`: for reading, as JSON and as a page.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{answer, failure, folder};
use quantiles_testing::root;

/// Writes `t.parquet` and `u.csv` to a folder.
fn files() -> tempfile::TempDir {
    let folder = folder();
    let sql = "COPY (SELECT value AS id, value % 10 = 3 AS flag, CASE WHEN value % 4 <> 1 THEN (value * value % 1000)::DECIMAL(9, 2) / 100 END AS price,
         CASE WHEN value % 3 = 0 THEN 'often' ELSE concat('<b>', value % 50) END AS \"na<me\", value % 20 * 1.5::DOUBLE AS x,
         arrow_cast((19723 + value % 100)::INT, 'Date32') AS day, [value, 2] AS list
         FROM range(0, 1000)) TO 't.parquet';
         COPY (SELECT value AS id, value % 3 AS g FROM range(1000, 1100)) TO 'u.csv';";
    answer(folder.path(), &["sql", "-q", "-c", sql]);
    folder
}

fn profile(folder: &tempfile::TempDir, args: &[&str]) -> Value {
    let args = [&["profile", "--json"], args].concat();
    serde_json::from_str(&answer(folder.path(), &args)).unwrap()
}

/// What is wrong with a JSON value by a schema, of whose language this knows what the profile's schema uses.
fn faults(value: &Value, schema: &Value, whole: &Value, at: &str, faults: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = whole.pointer(reference.trim_start_matches('#')).unwrap();
        return self::faults(value, schema, whole, at, faults);
    }
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("type {other}"),
    };
    let types: Vec<_> = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is(name)) {
        faults.push(format!("{at}: {value} is none of {types:?}"));
    }
    if schema["minimum"]
        .as_f64()
        .is_some_and(|least| value.as_f64().is_some_and(|number| number < least))
    {
        faults.push(format!("{at}: {value} is too small"));
    }
    if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
        faults.push(format!("{at}: {value} is not {wanted}"));
    }
    for item in value
        .as_array()
        .into_iter()
        .flatten()
        .filter(|_| schema.get("items").is_some())
    {
        self::faults(item, &schema["items"], whole, &format!("{at}[]"), faults);
    }
    let Some(object) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !object.contains_key(name.as_str().unwrap()) {
            faults.push(format!("{at} has no {name}"));
        }
    }
    for (name, value) in object {
        let other = &schema["additionalProperties"];
        let inner = schema["properties"]
            .get(name)
            .or(other.is_object().then_some(other));
        match inner {
            Some(inner) => self::faults(value, inner, whole, &format!("{at}.{name}"), faults),
            None => faults.push(format!("{at} has {name}")),
        }
    }
}

#[test]
fn json_is_what_its_schema_says() {
    let schema = fs::read_to_string(root().join("docs/guide/profile.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let folder = files();
    for args in [
        &["t.parquet"][..],
        &["t.parquet", "--by", "flag"],
        &["u.csv", "--by", "g", "--columns", "id"],
        &["t.parquet", "u.csv", "--columns", "id"],
    ] {
        let found = profile(&folder, args);
        let mut wrong = Vec::new();
        faults(&found, &schema, &schema, "profile", &mut wrong);
        assert!(wrong.is_empty(), "{args:?}: {wrong:?}");
        assert_eq!(found.get("groups").is_some(), args.contains(&"--by"), "{args:?}");
    }
    let mut wrong = Vec::new();
    let broken = json!({ "version": 2, "source": 1, "rows": -1, "columns": [{ "name": "a", "tipe": "b" }] });
    faults(&broken, &schema, &schema, "profile", &mut wrong);
    assert_eq!(wrong.len(), 7, "{wrong:?}");
}

#[test]
fn figures_of_columns_and_groups() {
    let folder = files();
    let all = profile(&folder, &["t.parquet", "u.csv"]);
    assert_eq!(
        (&all["source"], &all["rows"]),
        (&json!("t.parquet, u.csv"), &json!(1100))
    );
    let names = |columns: &Value| {
        let columns = columns.as_array().unwrap();
        columns
            .iter()
            .map(|column| column["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&all["columns"]),
        ["id", "flag", "price", "na<me", "x", "day", "list", "g"]
    );
    let id = &all["columns"][0];
    assert_eq!(
        (&id["percentiles"]["50"], &id["max"], &id["nulls"]),
        (&json!(549), &json!(1099), &json!(0))
    );
    let of_one = profile(&folder, &["t.parquet", "--columns", "price,na<me,x"]);
    assert_eq!(names(&of_one["columns"]), ["price", "na<me", "x"]);
    let price = &of_one["columns"][0];
    assert_eq!(
        (&price["nulls"], &price["distinct"]["exact"]),
        (&json!(250), &json!(true))
    );
    let quantiles = answer(
        folder.path(),
        &[
            "sql",
            "-q",
            "--format",
            "csv",
            "-c",
            "SELECT exact_quantiles(price, [0.01, 0.5, 0.99])::VARCHAR FROM 't.parquet'",
        ],
    );
    let percentiles = &price["percentiles"];
    let list = [&percentiles["1"], &percentiles["50"], &percentiles["99"]]
        .map(|value| value.as_str().unwrap())
        .join(", ");
    assert!(quantiles.contains(&format!("[{list}]")), "{quantiles} {list}");
    assert_eq!(
        of_one["columns"][1]["top"][0],
        json!({ "value": "often", "count": 334 })
    );

    let by = profile(&folder, &["t.parquet", "--by", "flag", "--columns", "x,id"]);
    let groups = by["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    for group in groups {
        assert_eq!(names(&group["columns"]), ["x", "id"]);
        let flag = group["group"]["flag"].as_bool().unwrap();
        let sql = format!(
            "SELECT count(*), exact_quantiles(id, 0.75), count(DISTINCT x) FROM 't.parquet' WHERE flag = {flag}"
        );
        let expected = answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql]);
        let found = format!(
            "{},{},{}",
            group["rows"], group["columns"][1]["percentiles"]["75"], group["columns"][0]["distinct"]["count"]
        );
        assert_eq!(expected.lines().last(), Some(found.as_str()));
    }
}

#[test]
fn for_reading() {
    let folder = files();
    let text = answer(
        folder.path(),
        &["profile", "t.parquet", "--columns", "flag,price,x"],
    );
    let expected = "t.parquet
1,000 rows, 3 columns

flag  Boolean
  no NULLs  2 distinct
  false  900   90.0 % ███████████████████████████
  true   100   10.0 % ███

price  Decimal128(13, 6)
  250 NULL (25.0 %)  159 distinct
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("\nx  Float64\n  no NULLs  20 distinct\n  min 0  p1 0  p5 0  p25 6  p50 13.5  p75 21  p95 27  p99 28.5  max 28.5\n"), "{text}");
    assert!(
        text.contains("  mean 14.25  deviation 8.65375  none beyond the fences -16.5 and 43.5\n"),
        "{text}"
    );
    let by = answer(
        folder.path(),
        &["profile", "u.csv", "--by", "g", "--columns", "id"],
    );
    assert!(
        by.starts_with("u.csv\n\ng = 0: 33 rows, 1 column\n\nid  Int64\n"),
        "{by}"
    );
    assert!(by.contains("\ng = 2: 33 rows, 1 column\n"), "{by}");
}

#[test]
fn what_cannot_be_profiled() {
    let folder = files();
    for (args, message) in [
        (
            &["t.parquet", "--columns", "id,nowhere"][..],
            "no column 'nowhere'; there are: id, flag, price, na<me, x, day, list",
        ),
        (&["t.parquet", "--by", "nowhere"], "no column 'nowhere'"),
        (
            &["t.parquet", "--by", "id"],
            "there are more than 100 groups, of which no more are profiled",
        ),
        (&["nowhere.parquet"], "file 'nowhere.parquet' not found"),
        (
            &["t.parquet", "--html", "nowhere/t.html"],
            "cannot write 'nowhere/t.html'",
        ),
    ] {
        let args = [&["profile"], args].concat();
        let text = failure(folder.path(), &args, 1);
        assert!(text.contains(message), "{args:?}: {text}");
    }
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn the_page_has_the_figures_of_the_json_and_needs_nothing_else() {
    let folder = files();
    answer(folder.path(), &["profile", "t.parquet", "--html", "t.html"]);
    let page = fs::read_to_string(folder.path().join("t.html")).unwrap();
    assert_eq!(data(&page), profile(&folder, &["t.parquet"]));
    // Names and values are text.
    assert!(
        page.contains("na&lt;me")
            && page.contains("&lt;b&gt;11")
            && !page.contains("na<me")
            && !page.contains("<b>"),
        "{page}"
    );
    for loads in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert_eq!(page.matches("<article").count(), 7);
    // id, price, x and day.
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("role=\"img\" aria-label=").count(), 4);
}

/// The JSON in a page.
fn data(page: &str) -> Value {
    let (_, data) = page
        .split_once("<script type=\"application/json\" id=\"profile\">")
        .unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[test]
#[ignore = "needs the browser Chromium, as the program `chromium`"]
fn a_browser_shows_the_page_without_an_error() {
    let folder = files();
    answer(
        folder.path(),
        &["profile", "t.parquet", "--by", "flag", "--html", "t.html"],
    );
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("file://{}", folder.path().join("t.html").display()))
        .output()
        .unwrap();
    let (page, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(!errors.contains(":CONSOLE"), "{errors}");
    // The script ran.
    assert!(
        page.contains("12 of 12 columns</output>") && !page.contains("role=\"search\" hidden"),
        "{page}"
    );
    let shown = data(&page);
    assert_eq!(shown, profile(&folder, &["t.parquet", "--by", "flag"]));
    for group in shown["groups"].as_array().unwrap() {
        for column in group["columns"].as_array().unwrap() {
            let name = column["name"].as_str().unwrap().replace('<', "&lt;");
            let heading = format!("{name}: flag = {} <small>", group["group"]["flag"]);
            let (_, article) = page
                .split_once(&heading)
                .unwrap_or_else(|| panic!("{heading}: {page}"));
            let article = article.split("</article>").next().unwrap();
            for (percentage, value) in column["percentiles"].as_object().into_iter().flatten() {
                let figure = if percentage == "50" {
                    "median".to_owned()
                } else {
                    format!("{percentage} %")
                };
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let value = value.strip_suffix(".0").unwrap_or(&value);
                assert!(
                    article.contains(&format!("<dt>{figure}</dt><dd>{value}</dd>")),
                    "{figure} {value}: {article}"
                );
            }
        }
    }
}
