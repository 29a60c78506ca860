//! stub
use crate::console::End;
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {}
pub(crate) async fn run(_args: GenerateArgs) -> End { End::Success }
