//! Makes photo mosaics: all in one process, or one role in each.

fn main() {
    mosaic::cli::main();
}
