//! A process of the crash suites: see `queue_crash::worker`.

use queue_crash::worker::{Arguments, run};

#[tokio::main]
async fn main() {
    run(Arguments::of_this_process()).await;
}
