//! stub
use crate::console::End;
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {}
pub(crate) async fn run(_args: DemoArgs) -> End { End::Success }
