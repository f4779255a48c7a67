//! Instances that are processes.

use std::process::Command;
use std::time::Duration;

use queue_agent::{Instance, Instances as _, Processes};
use queue_runtime::Message as _;
use tokio::time::sleep;

use crate::support::{GUARD, Job, NEVER};

fn shell(script: &str) -> Processes {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Processes::new(command)
}

/// Lists an instance until something is so.
async fn listed(processes: &mut Processes, is: impl Fn(&Instance) -> bool) -> Instance {
    let begun = std::time::Instant::now();
    loop {
        let all = processes.list().await.expect("listed");
        if let Some(found) = all.into_iter().find(&is) {
            return found;
        }
        assert!(begun.elapsed() < GUARD, "it does not come to that");
        sleep(Duration::from_millis(10)).await;
    }
}

fn has_ended(instance: &Instance) -> bool {
    instance.ended.is_some()
}

#[tokio::test]
async fn one_that_reports_ends_with_its_input() {
    let script = r#"test "$QUEUE_AGENT" = jobs,mails || exit 9; echo other; printf "50 %%"; echo "queue-agent-report {\"in_flight\":3,\"handled\":7}"; echo "queue-agent-report {\"process\":1}"; cat; exit 3"#;
    let mut processes = shell(script);
    let queues = [Job::TYPE.queue(), "mails".parse().expect("a name")];
    let id = processes.start(&queues).await.expect("started");
    let reports = listed(&mut processes, |one| one.report.is_some()).await;
    let report = reports.report.expect("it has one");
    assert_eq!(
        (reports.id, report.in_flight, report.handled),
        (id.clone(), 3, 7)
    );
    processes.stop(&id, NEVER).await.expect("asked");
    let ended = listed(&mut processes, has_ended).await.ended;
    assert_eq!(ended.expect("it has").how, "exit status: 3");
    assert!(processes.list().await.expect("listed").is_empty());
}

#[tokio::test]
async fn one_that_does_not_report_gets_a_signal() {
    let mut processes = shell("exec sleep 1000");
    let id = processes
        .start(&[Job::TYPE.queue()])
        .await
        .expect("started");
    processes.stop(&id, NEVER).await.expect("asked");
    let ended = listed(&mut processes, has_ended).await.ended;
    let how = ended.expect("it has").how;
    assert!(how.contains("15"), "{how}");
}

#[tokio::test]
async fn one_that_does_not_stop_is_killed() {
    let mut processes =
        shell(r#"trap "" TERM; echo "queue-agent-report {}"; while :; do sleep 1; done"#);
    let id = processes
        .start(&[Job::TYPE.queue()])
        .await
        .expect("started");
    listed(&mut processes, |one| one.report.is_some()).await;
    processes.stop(&id, Duration::ZERO).await.expect("asked");
    let ended = listed(&mut processes, has_ended).await.ended;
    let how = ended.expect("it has").how;
    assert!(how.contains('9'), "{how}");
}

/// An agent, and an instance of it that prints without end: this program again, in a role.
#[cfg(target_os = "linux")]
mod printing {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    use queue_runtime::Received;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::support::memory;

    const ROLE: &str = "AGENT_PROCESSES_ROLE";

    /// More than a pipe holds.
    const LINES: usize = 100_000;

    fn this(role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        let name = "agent_processes::printing::program";
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        command.env(ROLE, role);
        command
    }

    #[tokio::test]
    #[ignore = "the program that the other test starts"]
    async fn program() {
        match std::env::var(ROLE).as_deref() {
            Ok("agent") => {
                let mut processes = Processes::new(this("instance"));
                processes
                    .start(&[Job::TYPE.queue()])
                    .await
                    .expect("started");
                std::future::pending().await
            }
            Ok("instance") => {
                let service = memory().await;
                let handler = async |_: Received<Job>| {};
                service.listener(handler).start().expect("starts");
                let attached = queue_agent::attach(&service).expect("attached");
                println!("ready");
                let mut stopped = std::pin::pin!(attached.stopped());
                loop {
                    println!("handling");
                    tokio::select! {
                        biased;
                        () = &mut stopped => break,
                        () = tokio::task::yield_now() => {}
                    }
                }
                for _ in 0..LINES {
                    println!("stopping");
                }
                eprintln!("printed all");
            }
            other => panic!("it is started by the other test only: {other:?}"),
        }
    }

    #[test]
    fn one_that_prints_does_not_fail_when_its_agent_is_killed() {
        let mut agent = this("agent")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = |output| BufReader::new(output).lines().map_while(Result::ok);
        let mut out =
            lines(Box::new(agent.stdout.take().expect("piped")) as Box<dyn std::io::Read>);
        let errors = Box::new(agent.stderr.take().expect("piped"));
        assert!(out.any(|line| line.ends_with("ready")), "it is ready");
        kill_process(Pid::from_child(&agent), Signal::KILL).expect("it runs");
        agent.wait().expect("it is a child of ours");
        let said: Vec<_> = lines(errors).collect();
        assert!(said.iter().any(|line| line == "printed all"), "{said:?}");
        assert!(said.iter().any(|line| line == "stopping"), "{said:?}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let mut processes = Processes::new(Command::new("/no/such/program"));
    let error = processes
        .start(&[Job::TYPE.queue()])
        .await
        .expect_err("fails");
    let error = error.chain();
    assert!(
        error.starts_with("failed to start `/no/such/program`: "),
        "{error}"
    );
}
