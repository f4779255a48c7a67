use queue_core::Message;

struct Slice {
    number: u32,
}

fn needs<M: Message>(_: &M) {}

fn main() {
    needs(&Slice { number: 1 });
}
