//! Nodes and functions of plans from damaged bytes: each is an error, or runs.

use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_plan::{collect, displayable};
use datafusion_proto::physical_plan::DefaultPhysicalProtoConverter;

use super::tests::planned;
use super::*;
use crate::functions::gk::gk_aggregates;
use crate::functions::ranks::{RankFunction, rank_aggregates};
use crate::functions::shape::shape_aggregates;
use crate::functions::topk::topk_aggregates;
use crate::functions::{ExactQuantiles, GkFunction, Guarded, TopKBy, all_aggregates};
use crate::mutated::{Decoder, SLACK, uncounted};

const STATEMENTS: [&str; 11] = [
    "SELECT id FROM t ORDER BY array_position([3, 1, 2], n), fare LIMIT 3",
    "SELECT * FROM t ORDER BY fare DESC, -n NULLS FIRST LIMIT 100",
    "SELECT id, fare FROM t ORDER BY n, at DESC OFFSET 7 LIMIT 3",
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY city, n ORDER BY fare DESC, city) AS r FROM t) WHERE r <= 5",
    "SELECT id, r FROM (SELECT *, rank() OVER (PARTITION BY n % 10 ORDER BY at, n) AS r FROM t) WHERE r < 3",
    "SELECT DISTINCT ON (city) city, id, fare FROM t ORDER BY city, at DESC",
    "SELECT exact_quantiles(fare, [0.1, 0.5]), exact_quantiles(n, 0.25) FROM t",
    "SELECT median(fare), count(*) FROM t WHERE id > 3",
    "SELECT city, exact_quantiles(fare, 0.5) FROM t GROUP BY city",
    "SELECT city, n, exact_quantiles(fare, [0.5, 0.9]), percentile_cont(0.3) WITHIN GROUP (ORDER BY id) FROM t GROUP BY city, n",
    "SELECT n, max_by(city, fare) FROM t GROUP BY n",
];

/// The bytes of this crate's nodes, behind the number of their inputs.
struct Nodes {
    inputs: Vec<Vec<Arc<dyn ExecutionPlan>>>,
    bytes: Vec<Vec<u8>>,
    context: Arc<TaskContext>,
}

async fn nodes() -> Nodes {
    let (_, context) = planned("SELECT 1").await;
    let (mut inputs, mut all) = (Vec::new(), Vec::new());
    let codec = QuantilesCodec::default();
    for sql in STATEMENTS {
        let (plan, _) = planned(sql).await;
        plan.apply(|node| {
            let mut bytes = vec![inputs.len() as u8];
            let is_ours = codec.try_encode(Arc::clone(node), &mut bytes, &DefaultPhysicalProtoConverter {});
            if is_ours.is_ok() && bytes[1..].starts_with(TAG) {
                inputs.push(node.children().into_iter().map(Arc::clone).collect());
                all.push(bytes);
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
    }
    Nodes {
        inputs,
        bytes: all,
        context,
    }
}

/// Restores the tag and the version at a position of the bytes.
fn tag(bytes: &mut [u8], at: usize) {
    let head = [TAG, &[VERSION]].concat();
    let end = (at + head.len()).min(bytes.len());
    if at < end {
        bytes[at..end].copy_from_slice(&head[..end - at]);
    }
}

#[test]
fn mutated_nodes_of_plans_do_no_harm() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let nodes = runtime.block_on(nodes());
    let (codec, converter) = (QuantilesCodec::default(), DefaultPhysicalProtoConverter {});
    Decoder {
        // Each field of a schema is an object, and takes two bytes at least.
        slack: 4 * SLACK,
        name: "nodes of plans",
        test: (module_path!(), "mutated_nodes_of_plans_do_no_harm"),
        valid: &|_| nodes.bytes.clone(),
        seal: &|bytes| tag(bytes, 1),
        decode: &|bytes| {
            let number = usize::from(bytes.first().copied().unwrap_or_default());
            let inputs = uncounted(|| nodes.inputs[number % nodes.inputs.len()].clone());
            codec.try_decode(
                bytes.get(1..).unwrap_or_default(),
                &inputs,
                &nodes.context,
                &converter,
            )
        },
        apply: &|node| {
            let mut again = Vec::new();
            codec.try_encode(Arc::clone(&node), &mut again, &converter)?;
            displayable(node.as_ref()).indent(true).to_string();
            node.input_distribution_requirements();
            let run = async {
                tokio::time::timeout(Duration::from_secs(5), collect(node, Arc::clone(&nodes.context))).await
            };
            runtime.block_on(run).expect("a plan that does not end").map(drop)
        },
    }
    .check();
}

/// The bytes of this crate's functions, behind the number of their kind.
fn functions() -> Vec<Vec<u8>> {
    let quantiles = || crate::quantile::Quantiles {
        list: [0.25, 0.9]
            .map(|q| crate::quantile::Quantile::try_from_f64(q).unwrap())
            .to_vec(),
        is_list: true,
    };
    let mut all: Vec<AggregateUDF> = Vec::new();
    for function in all_aggregates() {
        all.push(function.as_ref().clone());
        let bound = ExactQuantiles::of(function).unwrap().bound_to(quantiles());
        all.push(bound.into());
    }
    for function in topk_aggregates() {
        all.push(Guarded::new(Arc::clone(function)).into());
        all.push(TopKBy::of(function).unwrap().bound_to(Some(3)).into());
    }
    for function in shape_aggregates() {
        all.push(function.as_ref().clone());
        all.push(Guarded::new(Arc::clone(function)).into());
    }
    for function in rank_aggregates() {
        use datafusion::common::ScalarValue;
        let rank = RankFunction::of(function).unwrap();
        all.push(Guarded::new(Arc::clone(function)).into());
        for (x, v) in [
            (DataType::Float64, ScalarValue::from(1.5)),
            (DataType::Utf8, ScalarValue::from("text")),
        ] {
            all.push(rank.bound_to(&x, &v).unwrap().into());
        }
    }
    let approximate = gk_aggregates()
        .iter()
        .filter(|function| GkFunction::of(function).is_some());
    all.extend(approximate.map(|function| function.as_ref().clone()));
    let codec = QuantilesCodec::default();
    let mut found: Vec<Vec<u8>> = all
        .iter()
        .map(|function| {
            let mut bytes = vec![0];
            codec.try_encode_udaf(function, &mut bytes).unwrap();
            bytes
        })
        .collect();
    let frame = |first: u64, last: u64| {
        use datafusion::common::ScalarValue;
        use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
        WindowFrame::new_bounds(
            WindowFrameUnits::Rows,
            WindowFrameBound::Preceding(ScalarValue::UInt64(Some(first))),
            WindowFrameBound::Following(ScalarValue::UInt64(Some(last))),
        )
    };
    for (first, last) in [(0, 0), (3, 1), (100, 7)] {
        let exact = ExactQuantiles::of(&all_aggregates()[0]).unwrap();
        let moving = crate::functions::MovingQuantiles::try_new(
            exact,
            quantiles(),
            &frame(first, last),
            first == 0,
            &DataType::Float64,
        );
        let mut bytes = vec![1];
        codec
            .try_encode_udwf(&WindowUDF::from(moving.unwrap()), &mut bytes)
            .unwrap();
        found.push(bytes);
    }
    found
}

fn columns() -> [ArrayRef; 3] {
    [
        Arc::new(Float64Array::from(vec![
            Some(1.5),
            None,
            Some(-3.0),
            Some(f64::NAN),
            Some(0.0),
        ])),
        Arc::new(Int64Array::from(vec![
            Some(5),
            Some(-5),
            None,
            Some(i64::MAX),
            Some(0),
        ])),
        Arc::new(StringArray::from(vec![
            Some("a"),
            Some("a longer one than twelve"),
            None,
            Some(""),
            Some("b"),
        ])),
    ]
}

/// The function over values of several types, as a plan calls it.
fn called(function: Arc<AggregateUDF>) -> Result<()> {
    let arrays = columns();
    let fields = ["f", "i", "s"].iter().zip(&arrays);
    let fields = fields.map(|(name, array)| Field::new(*name, array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let column =
        |index: usize| Arc::new(Column::new(schema.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
    let mut one = Ok(());
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.to_vec())?;
    for arguments in [
        vec![],
        vec![column(0)],
        vec![column(2)],
        vec![column(2), column(0)],
        vec![column(1), lit(0.5)],
    ] {
        let call = AggregateExprBuilder::new(Arc::clone(&function), arguments)
            .schema(Arc::clone(&schema))
            .alias("a")
            .build();
        one = call.and_then(|call| in_two_steps(&call, &batch));
    }
    one
}

/// A partial aggregate, and one that merges its state.
fn in_two_steps(call: &AggregateFunctionExpr, batch: &RecordBatch) -> Result<()> {
    let (mut partial, mut last) = (call.create_accumulator()?, call.create_accumulator()?);
    let values = call.expressions().into_iter();
    let values = values.map(|expr| expr.evaluate(batch)?.into_array(batch.num_rows()));
    let values: Vec<ArrayRef> = values.collect::<Result<_>>()?;
    partial.update_batch(&values)?;
    let states = partial.state()?;
    let states = states.iter().map(|state| state.to_array());
    last.merge_batch(&states.collect::<Result<Vec<_>>>()?)?;
    last.evaluate().map(drop)
}

/// The window function over floats, row by row and all at once.
fn moved(function: &WindowUDF) -> Result<()> {
    let values = Arc::clone(&columns()[0]);
    let field = Arc::new(Field::new("f", DataType::Float64, true));
    function.field(WindowUDFFieldArgs::new(&[Arc::clone(&field)], "w"))?;
    let (exprs, fields) = ([Arc::new(Column::new("f", 0)) as Arc<dyn PhysicalExpr>], [field]);
    let evaluator =
        || function.partition_evaluator_factory(PartitionEvaluatorArgs::new(&exprs, &fields, false, false));
    evaluator()?.evaluate_all(&[Arc::clone(&values)], values.len())?;
    let mut rows = evaluator()?;
    for row in 0..values.len() {
        let range = rows.get_range(row, values.len())?;
        rows.evaluate(&[Arc::clone(&values)], &range)?;
    }
    Ok(())
}

#[test]
fn mutated_functions_of_plans_do_no_harm() {
    enum Function {
        Aggregate(Arc<AggregateUDF>),
        Window(Arc<WindowUDF>),
    }
    let codec = QuantilesCodec::default();
    Decoder {
        slack: SLACK,
        name: "functions of plans",
        test: (module_path!(), "mutated_functions_of_plans_do_no_harm"),
        valid: &|_| functions(),
        seal: &|bytes| tag(bytes, 1),
        decode: &|bytes| match bytes.split_first() {
            Some((0, rest)) => codec.try_decode_udaf("f", rest).map(Function::Aggregate),
            Some((_, rest)) => codec.try_decode_udwf("f", rest).map(Function::Window),
            None => internal_err!("nothing"),
        },
        apply: &|function| match function {
            Function::Aggregate(function) => {
                codec.try_encode_udaf(&function, &mut Vec::new())?;
                called(function)
            }
            Function::Window(function) => {
                codec.try_encode_udwf(&function, &mut Vec::new())?;
                moved(&function)
            }
        },
    }
    .check();
}

/// Machines of two versions report it, whichever of the two reads.
#[test]
fn nodes_and_functions_of_other_versions_are_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let nodes = runtime.block_on(nodes());
    let (codec, converter) = (QuantilesCodec::default(), DefaultPhysicalProtoConverter {});
    let refused = |error: datafusion::common::DataFusionError| {
        let error = error.strip_backtrace();
        assert!(
            error.contains("run the same version of datafusion-quantiles"),
            "{error}"
        );
    };
    for other in [VERSION - 1, VERSION + 1, 0, u8::MAX] {
        for bytes in &nodes.bytes {
            let mut bytes = bytes.clone();
            bytes[1 + TAG.len()] = other;
            let inputs = &nodes.inputs[usize::from(bytes[0])];
            refused(
                codec
                    .try_decode(&bytes[1..], inputs, &nodes.context, &converter)
                    .unwrap_err(),
            );
        }
        for mut bytes in functions() {
            bytes[1 + TAG.len()] = other;
            match bytes[0] {
                0 => refused(codec.try_decode_udaf("f", &bytes[1..]).unwrap_err()),
                _ => refused(codec.try_decode_udwf("f", &bytes[1..]).unwrap_err()),
            }
        }
    }
}
