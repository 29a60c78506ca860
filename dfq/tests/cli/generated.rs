//! Data that `dfq` makes: TPC-H, synthetic columns, and those of the demo.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{answer, dfq, err, failure, folder, out, run};

#[test]
fn tpch_tables_have_their_rows() {
    let folder = folder();
    let made = run(
        folder.path(),
        &["generate", "tpch", "--scale", "0.001", "--output", "d"],
    );
    assert_eq!((made.status.code(), out(&made)), (Some(0), ""), "{}", err(&made));
    let count = |table: &str| {
        let sql = format!("SELECT count(*) AS n FROM 'd/{table}'");
        answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql])
    };
    let rows = [
        ("customer", 150),
        ("nation", 25),
        ("orders", 1500),
        ("part", 200),
        ("partsupp", 800),
        ("region", 5),
        ("supplier", 10),
        ("lineitem", 6005),
    ];
    for (table, rows) in rows {
        assert_eq!(
            count(&format!("{table}.parquet")),
            format!("n\n{rows}\n"),
            "{table}"
        );
    }
    assert_eq!(
        fs::read_dir(folder.path().join("d")).unwrap().count(),
        rows.len(),
        "no partial file stays"
    );
    let again = [
        "generate", "tpch", "--scale", "0.001", "--output", "d", "--tables", "region",
    ];
    let message = failure(folder.path(), &again, 1);
    assert!(
        message.contains("region.parquet' exists already; --force"),
        "{message}"
    );
    let forced = run(folder.path(), &[&again[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", err(&forced));
    let parts = [
        "generate",
        "tpch",
        "--scale",
        "0.001",
        "--output",
        "d",
        "--tables",
        "lineitem,region",
        "--parts",
        "3",
        "--force",
    ];
    assert!(run(folder.path(), &parts).status.success());
    assert_eq!(fs::read_dir(folder.path().join("d/lineitem")).unwrap().count(), 3);
    assert_eq!(count("lineitem/"), "n\n6005\n");
}

#[test]
fn synthetic_data_is_the_same_for_a_seed() {
    let folder = folder();
    for (output, seed) in [("a", "7"), ("b", "7"), ("c", "8")] {
        let args = [
            "generate",
            "synthetic",
            "--rows",
            "1e4",
            "--seed",
            seed,
            "--output",
            output,
        ];
        assert!(run(folder.path(), &args).status.success());
    }
    let all = |name: &str| {
        let sql = format!("SELECT * FROM '{name}/synthetic.parquet' ORDER BY id");
        answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql])
    };
    let rows = all("a");
    assert_eq!(
        rows.lines().next(),
        Some("lognormal,uniform_i64,price,zipf,g1000,g1m,id")
    );
    assert_eq!(rows.lines().count(), 10_001);
    assert_eq!(rows, all("b"));
    assert_ne!(rows, all("c"));
}

#[cfg(unix)]
#[test]
fn an_interrupted_generation_leaves_nothing() {
    let folder = folder();
    let data = folder.path().join("d");
    let mut child = dfq(folder.path())
        .args(["generate", "synthetic", "--rows", "1e10", "--output", "d"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait for the unfinished file, then interrupt.
    while fs::read_dir(&data).map_or(0, Iterator::count) == 0 {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(!data.join("synthetic.parquet").exists());
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
}

#[test]
fn the_demo_shows_what_it_computes() {
    let folder = folder();
    let output = run(
        folder.path(),
        &["demo", "--scale", "0.001", "--output", "d", "--partitions", "3"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let file = "d/tpch-0.001/lineitem.parquet";
    // Ranks ceil(q * 6005), from a sort.
    let places = [61, 1502, 3003, 4504, 5945];
    let sql = format!(
        "SELECT p FROM (SELECT l_extendedprice AS p, row_number() OVER (ORDER BY l_extendedprice) AS r FROM '{file}') \
         WHERE r IN ({}) ORDER BY r",
        places.map(|place: u32| place.to_string()).join(", ")
    );
    let sorted = answer(folder.path(), &["sql", "-q", "--format", "csv", "-c", &sql]);
    let expected = sorted.lines().skip(1).collect::<Vec<_>>().join(", ");
    let text = out(&output);
    assert!(text.contains(&format!("| [{expected}] ")), "{expected}\n{text}");
    for part in [
        "6005 rows",
        "3 partitions",
        "GROUP BY l_returnflag",
        "QuantilesExec",
        "times as long",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Grouped answers too are there, one line a flag.
    for flag in ["| A ", "| N ", "| R "] {
        assert_eq!(text.matches(flag).count(), 2, "{flag}\n{text}");
    }
    // The second run uses the file of the first.
    let again = run(folder.path(), &["demo", "--scale", "0.001", "--output", "d"]);
    assert!(
        again.status.success() && !err(&again).contains("Writing"),
        "{}",
        err(&again)
    );
}
