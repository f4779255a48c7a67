use queue_runtime::QueueService;

struct Order;

async fn role(service: &QueueService) {
    let _ = service.submit(Order).await;
    let _ = service.accept::<Order>().await;
}

fn main() {}
