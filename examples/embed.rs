//! Every way into the crate from a Rust program. Run with `cargo run --example embed`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::*;
use datafusion_quantiles::{
    DataFrameQuantilesExt, Method, SessionStateBuilderExt, compute, expr_fn, register_all,
};

fn trips() -> Result<RecordBatch> {
    let city: ArrayRef = Arc::new(StringArray::from(vec!["Oslo", "Rome", "Oslo", "Rome", "Oslo"]));
    let fare: ArrayRef = Arc::new(Float64Array::from(vec![
        Some(12.0),
        Some(30.0),
        Some(8.0),
        None,
        Some(20.0),
    ]));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("city", city, false),
        ("fare", fare, true),
    ])?)
}

/// SQL in a session that exists already.
async fn sql() -> Result<()> {
    let ctx = SessionContext::new();
    ctx.register_batch("trips", trips()?)?;
    register_all(&ctx)?;

    let list = ctx
        .sql("SELECT exact_quantiles(fare, [0.5, 1], 'linear') AS q FROM trips")
        .await?;
    let list = list.collect().await?;
    println!("{}", pretty_format_batches(&list)?);
    let answers = list[0].column(0).as_list::<i32>().value(0);
    assert_eq!(answers.as_primitive::<Float64Type>().values(), &[16.0, 30.0]);

    let sql = "SELECT city, exact_quantiles(0.5) WITHIN GROUP (ORDER BY fare DESC) AS median
               FROM trips GROUP BY city ORDER BY city";
    let groups = ctx.sql(sql).await?.collect().await?;
    println!("{}", pretty_format_batches(&groups)?);
    assert_eq!(
        groups[0].column(1).as_primitive::<Float64Type>().values(),
        &[12.0, 30.0]
    );
    Ok(())
}

/// The DataFrame API, in a session that is being built.
async fn dataframe() -> Result<()> {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_quantiles()
        .build();
    let ctx = SessionContext::new_with_state(state);
    let trips = ctx.read_batch(trips()?)?;

    let table = trips.clone().quantiles(&["fare"], &[0.25, 0.75], Method::Disc)?;
    let table = table.collect().await?;
    println!("{}", pretty_format_batches(&table)?);
    assert_eq!(
        table[0].column(0).as_primitive::<Float64Type>().values(),
        &[0.25, 0.75]
    );
    assert_eq!(
        table[0].column(1).as_primitive::<Float64Type>().values(),
        &[8.0, 20.0]
    );

    let dearest = expr_fn::exact_quantiles(col("fare"), lit(0.0), Method::Disc, true).alias("dearest");
    let dearest = trips.aggregate(vec![], vec![dearest])?.collect().await?;
    assert_eq!(dearest[0].column(0).as_primitive::<Float64Type>().value(0), 30.0);
    Ok(())
}

/// An Arrow array, without a session and without a runtime.
fn array() -> Result<()> {
    let fare = Float64Array::from(vec![12.0, 30.0, 8.0, 20.0]);
    let answers = compute::quantiles(&fare, &[0.5, 0.0], Method::Lower)?;
    assert_eq!(answers.as_primitive::<Float64Type>().values(), &[12.0, 8.0]);
    assert_eq!(answers.null_count(), 0);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    sql().await?;
    dataframe().await?;
    array()
}
