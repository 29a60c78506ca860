//! Exact quantiles on a Ballista cluster, from a program. Start a cluster with `cargo run --features ballista -- cluster`,
//! make a table with `cargo run -- generate synthetic --rows 1e6 --output data`, then
//! `cargo run --features ballista --example cluster -- df://127.0.0.1:50050 data/synthetic.parquet`.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::prelude::ParquetReadOptions;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "df://127.0.0.1:50050".to_string());
    let table = arguments
        .next()
        .unwrap_or_else(|| "data/synthetic.parquet".to_string());

    // Functions and options are in the session; plans are made, and run, on the cluster.
    let ctx = datafusion_quantiles::ballista::connect(&url).await?;
    ctx.register_parquet("t", &table, ParquetReadOptions::default())
        .await?;
    for sql in [
        "SELECT exact_quantiles(price, [0.01, 0.5, 0.99]) AS quantiles, count(*) AS rows FROM t",
        "EXPLAIN ANALYZE SELECT exact_quantiles(uniform_i64, 0.5) FROM t",
    ] {
        let answer = ctx.sql(sql).await?.collect().await?;
        println!("{sql}\n{}", pretty_format_batches(&answer)?);
    }
    Ok(())
}
