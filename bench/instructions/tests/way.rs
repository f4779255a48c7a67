//! Which files a message passes, beside the list that is committed. Needs valgrind.

use std::process::Command;

#[test]
fn a_message_passes_the_files_that_are_listed() {
    let program = env!("CARGO_BIN_EXE_queue-instructions");
    let compared = Command::new(program).arg("way").output();
    let compared = compared.expect("the program starts");
    let told = String::from_utf8_lossy(&compared.stderr);
    assert!(compared.status.success(), "{told}");
}
