use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::escape;
use crate::failure::{Exit, Failure, Result};

/// Asks a question at the terminal.
///
/// # Errors
/// If the answer is not yes, or there is no terminal.
pub(crate) fn ask(question: &str) -> Result<()> {
    let question = escape(question);
    if !io::stdin().is_terminal() {
        let text = format!("not confirmed: {question}");
        let declined = Failure::new(Exit::Declined, text);
        return Err(declined.with_help("there is no terminal to ask at; add --yes"));
    }
    let mut prompt = anstream::stderr();
    write!(prompt, "{question} [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::input(&error))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(
            Exit::Declined,
            "not confirmed; nothing was changed",
        )),
    }
}
