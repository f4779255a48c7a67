//! The runtime of the conformance tests.

use std::sync::LazyLock;

use queue_core::clock::BoxFuture;
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("threads start")
});

pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

pub(crate) fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let running = RUNTIME.spawn(task);
    Box::pin(async {
        if let Err(failure) = running.await {
            std::panic::resume_unwind(failure.into_panic());
        }
    })
}
