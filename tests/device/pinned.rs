//! Pinned tables: their contents, the sessions that see them, and many queries at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_quantiles::kernel::cuda::{Device, DeviceColumn, Report, Selection};
use datafusion_quantiles::key::KeySpec;
use datafusion_quantiles::pinned::{share_pinned_tables, unpin_table, use_devices};
use quantiles_testing::patterns::Pattern;
use quantiles_testing::{batch, error, physical_plan, row, session, set, texts};

use crate::support::{On, columns, device, pinned, refusal, run, same, tests};

/// The operator that plans of quantiles show.
const PINNED: &str = "PinnedExec: device=cuda:0";

tests! {
    asynchronous kernels_are_compiled_ahead,
    asynchronous sessions_can_share_pinned_tables,
    asynchronous many_ranks_and_built_in_functions,
    plain small_devices,
    asynchronous pinned_tables_are_snapshots,
    asynchronous whole_tables_are_pinned_but_for_what_cannot_be,
    asynchronous queries_at_the_same_time,
}

/// SQL that creates a table of columns made of `value`, which runs through `range`.
async fn make(ctx: &SessionContext, table: &str, columns: &str, range: &str) {
    run(
        ctx,
        &format!("CREATE TABLE {table} AS SELECT {columns} FROM generate_series({range})"),
    )
    .await;
}

/// From PIN TABLE on, the kernels of likely queries are compiled: these queries load none.
async fn kernels_are_compiled_ahead() {
    let device = Arc::new(Device::open(0, None).unwrap());
    let ctx = session(2);
    use_devices(&ctx, vec![Arc::clone(&device)]);
    let columns = "CAST(value % 7 AS INT) AS g, CAST(value AS REAL) AS x, value AS id";
    make(&ctx, "t", columns, "1, 2000000").await;
    run(&ctx, "PIN TABLE t (g, x, id)").await;
    let mut loaded = 0;
    let begun = Instant::now();
    while loaded < device.loaded_programs() || loaded < 10 {
        loaded = device.loaded_programs();
        assert!(begun.elapsed() < Duration::from_secs(120), "{loaded} programs");
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    set(&ctx, "device", "cuda").await;
    for sql in [
        "SELECT exact_quantiles(x, 0.5), exact_quantiles(id, [0.1, 0.9]) FROM t",
        "SELECT exact_quantiles(x, 0.5) FROM t WHERE id > 1000",
        "SELECT g, exact_quantiles(x, [0.5, 0.99]), count(*) FROM t GROUP BY g",
        "SELECT g, exact_quantiles(id, 0.5) FILTER (WHERE x > 5) FROM t GROUP BY g",
        "SELECT topk_by(id, x, 10) FROM t",
        "SELECT g, topk_by(id, x, 10) FROM t GROUP BY g",
    ] {
        let plan = physical_plan(&ctx, sql).await;
        assert!(plan.contains("PinnedExec"), "{plan}");
        run(&ctx, sql).await;
        assert_eq!(device.loaded_programs(), loaded, "{sql}");
    }
    unpin_table(&ctx, "t").unwrap();
}

/// Sessions over one catalog, as a server has them: each uses what another one pinned, and no more once it is unpinned.
async fn sessions_can_share_pinned_tables() {
    let one = session(2);
    make(&one, "t", "CAST(value AS REAL) AS x", "1, 1000").await;
    let state = SessionStateBuilder::new_from_existing(one.state())
        .with_catalog_list(Arc::clone(one.state().catalog_list()))
        .build();
    let two = SessionContext::new_with_state(state);
    run(&one, "PIN TABLE t").await;
    let sql = "SELECT exact_quantiles(x, 0.5) FROM t";
    assert!(!physical_plan(&two, sql).await.contains("PinnedExec"));
    share_pinned_tables(&one, &two);
    for ctx in [&one, &two] {
        let plan = physical_plan(ctx, sql).await;
        assert!(plan.contains(PINNED), "{plan}");
        assert_eq!(row(ctx, sql).await, "500.0");
    }
    run(&two, "UNPIN TABLE t").await;
    assert!(!physical_plan(&one, sql).await.contains("PinnedExec"));
}

/// More ranks than one launch has room for, and the order of `ORDER BY`, in which NaNs differ.
async fn many_ranks_and_built_in_functions() {
    let ctx = session(2);
    let rows = batch(columns(Pattern::Random, 200_001, 9));
    pinned(&ctx, &rows, 2).await;
    let many: Vec<_> = (0..2500).map(|i| format!("{}", f64::from(i) / 2499.0)).collect();
    let sql = format!(
        "SELECT exact_quantiles(f64, [{0}]), exact_quantiles(u8, [{0}]) FROM t",
        many.join(", ")
    );
    same(&ctx, &sql, On::device(PINNED), "2500 ranks").await;
    set(&ctx, "replace_builtins", "true").await;
    same(
        &ctx,
        "SELECT median(dec) FROM t",
        On::device(PINNED),
        "median of decimals",
    )
    .await;
    for x in ["f16", "f32", "f64"] {
        let sql = format!("SELECT median({x}), percentile_cont(0.9) WITHIN GROUP (ORDER BY {x}) FROM t");
        same(&ctx, &sql, On::device(PINNED), x).await;
    }
}

/// Devices with less shared memory, and workspaces that are far too small.
fn small_devices() {
    for shared in [64 << 10, 99 << 10, 163 << 10, usize::MAX] {
        let device = Arc::new(Device::open(0, Some(shared)).unwrap());
        for pattern in [
            Pattern::Random,
            Pattern::Clusters,
            Pattern::HalfEqual,
            Pattern::Sorted,
            Pattern::Zipf,
        ] {
            for (name, array) in columns(pattern, 300_007, 3) {
                if !["f32", "f64", "i64", "i8", "f16", "dec"].contains(&name) {
                    continue;
                }
                let what = format!("{shared} bytes, {pattern:?}, {name}");
                let spec = KeySpec::try_new(array.data_type()).unwrap();
                let column =
                    DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(&array)).unwrap();
                let mut keys = spec.keys(&array).unwrap();
                keys.sort_unstable();
                let ranks: Vec<u64> = (0..150).map(|i| 1 + i * (keys.len() as u64 - 1) / 149).collect();
                let expected: Vec<_> = ranks.iter().map(|rank| keys[*rank as usize - 1]).collect();
                for room in [None, Some(3 << 20)] {
                    device.release_workspace();
                    let selection = Selection {
                        column: &column,
                        format: column.format(&spec),
                        mask: None,
                        limit: room.map(|room| device.held_bytes() + room),
                        timed: false,
                    };
                    let mut report = Report::default();
                    let found = selection
                        .keys(&ranks, &mut report)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(found == expected, "{what}, room {room:?}: {report:?}");
                }
                device.release_workspace();
                drop(column);
                assert_eq!(device.held_bytes(), 0, "{what}");
            }
        }
    }
}

async fn pinned_tables_are_snapshots() {
    let device = device();
    let ctx = session(2);
    let sql = "SELECT exact_quantiles(x, [0, 1]) FROM s";
    make(&ctx, "s", "value AS x, -value AS y", "1, 1000").await;
    run(&ctx, "PIN TABLE s (x)").await;
    let shown = run(&ctx, "SHOW PINNED").await;
    let expected = format!(
        "datafusion.public.s | x | 1000 | 8000 | cuda:0 | {}",
        device.name()
    );
    assert_eq!(texts(&shown), [expected]);
    assert_eq!(row(&ctx, sql).await, "[1, 1000]");
    run(&ctx, "INSERT INTO s VALUES (0, 0), (5000, 0)").await;
    assert_eq!(row(&ctx, sql).await, "[1, 1000]");
    // These do not run on the device: other columns, groups, other aggregates, some of the rows.
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM s").await,
        "[-1000, 0]"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, 1), count(*) FROM s").await,
        "5000 | 1002"
    );
    assert_eq!(row(&ctx, "SELECT exact_quantiles(x + 1, 1) FROM s").await, "5001");
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(x, 1) FROM (SELECT x FROM s LIMIT 5000)"
        )
        .await,
        "5000"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(DISTINCT x, 1) FROM s").await,
        "5000"
    );
    // A column under another name, or in a view, is the same column.
    assert_eq!(
        row(
            &ctx,
            "SELECT exact_quantiles(b, 1) FROM (SELECT x AS b FROM s) AS q"
        )
        .await,
        "1000"
    );
    run(&ctx, "CREATE VIEW v AS SELECT y AS x, x AS y FROM s").await;
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, 1), exact_quantiles(y, 0) FROM v").await,
        "0 | 0"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM v").await,
        "[1, 1000]"
    );
    set(&ctx, "device", "cpu").await;
    assert_eq!(row(&ctx, sql).await, "[0, 5000]");
    // A device that does not exist, to which the table itself would be sent.
    set(&ctx, "device", "cuda:7").await;
    assert!(error(&ctx, sql).await.contains("there is no device cuda:7"));
    set(&ctx, "device", "auto").await;
    // No table with the name; another table with the same schema; another table with another schema.
    run(&ctx, "DROP TABLE s").await;
    assert!(
        error(&ctx, sql)
            .await
            .contains("table 'datafusion.public.s' not found")
    );
    make(&ctx, "s", "value AS x, value AS y", "7, 8").await;
    assert_eq!(row(&ctx, sql).await, "[7, 8]");
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(y, [0, 1]) FROM v").await,
        "[1, 1000]",
        "a view keeps the table that it was made of"
    );
    // Another session, which has tables of its own.
    let other = SessionContext::new_with_config(ctx.copied_config());
    datafusion_quantiles::register_all(&other).unwrap();
    make(&other, "s", "value AS x, -value AS y", "5000, 6000").await;
    assert_eq!(row(&other, sql).await, "[5000, 6000]");
    assert!(refusal(&other, "UNPIN TABLE s").await.contains("is not pinned"));
    run(&ctx, "DROP TABLE s").await;
    make(&ctx, "s", "CAST(value AS INT) AS x, value AS y", "7, 8").await;
    assert_eq!(row(&ctx, sql).await, "[7, 8]");
    // A name that means another table now.
    run(&ctx, "DROP TABLE s").await;
    make(&ctx, "s", "value AS x, value AS y", "20, 30").await;
    run(&ctx, "CREATE SCHEMA other").await;
    make(&ctx, "other.s", "value AS x, value AS y", "40, 50").await;
    run(&ctx, "CREATE VIEW w AS SELECT x FROM s").await;
    run(&ctx, "PIN TABLE other.s (x)").await;
    run(&ctx, "SET datafusion.catalog.default_schema = 'other'").await;
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FROM s").await,
        "[40, 50]"
    );
    assert_eq!(
        row(&ctx, "SELECT exact_quantiles(x, [0, 1]) FROM public.w").await,
        "[20, 30]"
    );
    run(&ctx, "SET datafusion.catalog.default_schema = 'public'").await;
    // After pinning again, the rows of now.
    run(&ctx, "PIN TABLE s (y, x)").await;
    assert_eq!(row(&ctx, sql).await, "[20, 30]");
    run(&ctx, "UNPIN TABLE s").await;
    run(&ctx, "UNPIN TABLE other.s").await;
    assert!(texts(&run(&ctx, "SHOW PINNED").await).is_empty());
    assert!(physical_plan(&ctx, sql).await.starts_with("QuantilesExec"));
}

async fn whole_tables_are_pinned_but_for_what_cannot_be() {
    let ctx = session(2);
    make(
        &ctx,
        "s",
        "value AS x, CAST(value AS VARCHAR) AS text, -value AS y",
        "1, 1000",
    )
    .await;
    let told = texts(&run(&ctx, "PIN TABLE s").await);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[0], "x | Int64 | true | NULL");
    assert!(
        told[1].starts_with("text | Utf8") && told[1].ends_with("have no key of fixed width"),
        "{told:?}"
    );
    assert_eq!(told[2], "y | Int64 | true | NULL");
    let shown = texts(&run(&ctx, "SHOW PINNED").await);
    assert!(
        shown[0].starts_with("datafusion.public.s | x, y | 1000"),
        "{shown:?}"
    );
    let sql = "SELECT exact_quantiles(x, 0.5), exact_quantiles(y, 0.5) FROM s";
    assert!(physical_plan(&ctx, sql).await.starts_with(PINNED));
    assert_eq!(row(&ctx, sql).await, "500 | -501");
    run(&ctx, "UNPIN TABLE s").await;
}

async fn queries_at_the_same_time() {
    let ctx = session(2);
    let rows = batch(columns(Pattern::Zipf, 500_000, 2));
    pinned(&ctx, &rows, 2).await;
    let sql = "SELECT exact_quantiles(f64, [0.1, 0.5]), exact_quantiles(u16, 0.75) FROM t";
    let expected = row(&ctx, sql).await;
    let tasks = (0..16).map(|_| {
        let ctx = ctx.clone();
        tokio::spawn(async move { row(&ctx, sql).await })
    });
    for answer in futures::future::join_all(tasks).await {
        assert_eq!(answer.unwrap(), expected);
    }
}
