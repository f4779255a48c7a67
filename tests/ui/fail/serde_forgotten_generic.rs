use queue_derive::Message;

#[derive(Message)]
#[message(crate = queue_core)]
struct Stamped<T> {
    value: T,
}

fn needs<M: queue_core::Message>(_: &M) {}

fn main() {
    needs(&Stamped { value: 1 });
}
