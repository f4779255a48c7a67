//! The mosaic's page and its command line: how soon the default picture is done.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use queue_tests::http::Message;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::sleep;

use crate::report::{Table, in_turn};
use crate::{Options, Outcome, runtime};

const MOSAIC: &str = "mosaic";
const PAGE: &str = "page";
const COMMAND_LINE: &str = "command line";
/// What the form of the page asks for by default, which is what the command line does.
const ASKED: &str =
    "/jobs?name=sunset&scene=sunset&tiles=0&across=120&tile_size=24&slices=16&tint=0.5";
const ACROSS: u32 = 120;
/// The pause between looks for the mosaic.
const LOOK: Duration = Duration::from_millis(20);
/// When the mosaic is not expected any more.
const LONGEST: Duration = Duration::from_secs(300);

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let title = "The mosaic of the default picture, by its page and by its command line";
    let mut table = Table::new("page", title, &[PAGE, COMMAND_LINE])
        .costs("seconds until it can be looked at", 2)
        .by("tiles across");
    let program = std::env::current_exe()?.with_file_name(MOSAIC);
    if !program.exists() {
        table.note(format!("{} is not built", program.display()));
        return Ok(vec![table]);
    }
    for round in options.rounds() {
        for side in in_turn(round, vec![PAGE, COMMAND_LINE]) {
            eprintln!("page, round {round}: {side}");
            let dir = options.scratch()?;
            let took = match side {
                PAGE => runtime()?.block_on(by_page(&program, dir.path()))?,
                _ => by_command(&program, dir.path())?,
            };
            table.add("the default picture", ACROSS, side, took.as_secs_f64());
        }
    }
    Ok(vec![table])
}

/// Returns the time from the start of the program to its end.
fn by_command(program: &Path, dir: &Path) -> Outcome<Duration> {
    let started = Instant::now();
    let mut command = Command::new(program);
    command.arg("--data").arg(dir);
    command.arg("--out").arg(dir.join("mosaic.png"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("`{MOSAIC}` ended with {status}").into());
    }
    Ok(started.elapsed())
}

/// Returns the time from the request of a page that is open to the last byte of the mosaic.
async fn by_page(program: &Path, dir: &Path) -> Outcome<Duration> {
    let mut command = tokio::process::Command::new(program);
    command.args(["serve", "--port", "0", "--data"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = command.stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let output = server.stdout.take().ok_or("it has an output")?;
    let said = BufReader::new(output).lines().next_line().await?;
    let said = said.ok_or("`mosaic serve` has ended")?;
    let page = Page::open(said.split_whitespace().nth(1).ok_or("it prints a link")?).await?;
    let started = Instant::now();
    let accepted = page.ask("POST", ASKED, " 201 ").await?;
    let accepted: serde_json::Value = serde_json::from_slice(&accepted)?;
    let id = accepted["id"].as_str().ok_or("the job has an id")?;
    let mosaic = format!("/jobs/{id}/mosaic");
    // There is nothing before the mosaic is finished.
    while page.ask("GET", &mosaic, " 200 ").await.is_err() {
        if started.elapsed() > LONGEST {
            return Err(format!("there is no mosaic after {LONGEST:?}").into());
        }
        sleep(LOOK).await;
    }
    Ok(started.elapsed())
}

/// A page that is open in a browser which is logged in.
struct Page {
    port: u16,
    headers: Vec<(String, String)>,
}

impl Page {
    async fn open(link: &str) -> Outcome<Self> {
        let rest = link.strip_prefix("http://").ok_or("an HTTP link")?;
        let (host, path) = rest.split_once('/').ok_or("a link with a path")?;
        let (_, port) = host.split_once(':').ok_or("a link with a port")?;
        let mut page = Self {
            port: port.parse()?,
            headers: vec![("Host".to_owned(), host.to_owned())],
        };
        let login = page.send("GET", &format!("/{path}")).await?;
        let cookie = login.header("set-cookie").ok_or("no cookie")?;
        let cookie = cookie.split(';').next().unwrap_or_default();
        page.headers.push(("Cookie".to_owned(), cookie.to_owned()));
        let html = String::from_utf8(page.ask("GET", "/", " 200 ").await?)?;
        let (_, token) = (html.split_once("form-token\" content=\"")).ok_or("no form token")?;
        let (token, _) = token.split_once('"').ok_or("no end of the form token")?;
        let origin = format!("http://{host}");
        page.headers.push(("Origin".to_owned(), origin));
        let token = ("X-Form-Token".to_owned(), token.to_owned());
        page.headers.push(token);
        Ok(page)
    }

    async fn send(&self, method: &str, path: &str) -> Outcome<Message> {
        let request = Message {
            first: format!("{method} {path} HTTP/1.1"),
            headers: self.headers.clone(),
            body: Vec::new(),
        };
        Ok(request.forward(self.port).await?)
    }

    /// Returns the body of an answer with this status.
    async fn ask(&self, method: &str, path: &str, status: &str) -> Outcome<Vec<u8>> {
        let answer = self.send(method, path).await?;
        if !answer.first.contains(status) {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(format!("{method} {path}: {}: {text}", answer.first).into());
        }
        Ok(answer.body)
    }
}
