use queue_derive::Message;

#[derive(Message)]
#[message(crate = queue_core)]
struct Slice {
    number: u32,
}

fn main() {}
