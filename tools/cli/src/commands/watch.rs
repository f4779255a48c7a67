use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::Cell;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use queue_runtime::QueueName;
use queue_runtime::internal::parse_duration;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use crate::commands::list::{AT_ONCE, names, state};
use crate::commands::properties::{Figures, figures};
use crate::failure::{Exit, Failure, Result};
use crate::output::table::{alarming, number, text};
use crate::output::{NOT_KNOWN, Table, escape};
use crate::session::Session;

/// How many readings a history shows.
const HISTORY: usize = 20;

/// Show the queues live: the rates of puts and removals, and the numbers of waiting and poison messages. Ctrl-C ends
/// the command.
///
/// If the output is no terminal, the command writes a table at each interval, or with --json a line for each queue.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only queues whose names begin with this text.
    #[arg(default_value = "")]
    prefix: String,

    /// The time between two readings. On Azure, a reading takes up to three transactions for each queue.
    #[arg(long, short, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,

    /// End after this number of readings.
    #[arg(long, short = 'n', value_name = "READINGS")]
    count: Option<usize>,
}

/// A queue at one reading.
#[derive(Serialize)]
struct Reading {
    #[serde(flatten)]
    figures: Figures,
    /// Messages put in a second since the last reading. `None` in the first reading, and where the storage does not
    /// count.
    put_per_second: Option<f64>,
    deleted_per_second: Option<f64>,
}

/// What is known of earlier readings of a queue.
#[derive(Default)]
struct Past {
    last: Option<(Instant, usize, usize)>,
    depths: VecDeque<usize>,
}

impl Past {
    fn reading(&mut self, figures: Figures, now: Instant) -> Reading {
        if self.depths.len() == HISTORY {
            self.depths.pop_front();
        }
        self.depths.push_back(figures.messages);
        let totals = figures
            .totals
            .map(|totals| (now, totals.put, totals.deleted));
        let rates = self
            .last
            .zip(totals)
            .and_then(|((then, put, deleted), now)| {
                let seconds = now.0.duration_since(then).as_secs_f64();
                // A queue that was deleted and created again counts anew.
                let (put, deleted) = (now.1.checked_sub(put)?, now.2.checked_sub(deleted)?);
                (seconds > 0.0).then(|| (put as f64 / seconds, deleted as f64 / seconds))
            });
        self.last = totals;
        Reading {
            figures,
            put_per_second: rates.map(|(put, _)| put),
            deleted_per_second: rates.map(|(_, deleted)| deleted),
        }
    }
}

pub(crate) async fn run(watch: &Watch, session: &Session) -> Result<()> {
    if watch.interval < Duration::from_millis(100) {
        let text = "the interval is shorter than 100 ms, which is the least that is allowed";
        return Err(Failure::usage(text));
    }
    let mut screen = Screen::open(session.output.json)?;
    let mut pasts: BTreeMap<QueueName, Past> = BTreeMap::new();
    let mut ticks = tokio::time::interval(watch.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = watch.count.unwrap_or(usize::MAX);
    while left > 0 {
        left -= 1;
        ticks.tick().await;
        let read = match read(watch, session).await {
            Ok(read) => read,
            // The storage may answer again. At the first reading, the URL or the rights are probably wrong.
            Err(failure) if !pasts.is_empty() && failure.is(Exit::Failed) => {
                screen.fail(&failure)?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let now = Instant::now();
        let figures: Vec<_> = read.into_iter().flatten().collect();
        pasts.retain(|queue, _| figures.iter().any(|figures| figures.queue == *queue));
        let mut table = Table::new([
            "QUEUE", "MESSAGES", "IN/s", "OUT/s", "POISON", "OLDEST", "HISTORY", "STATE",
        ]);
        for figures in figures {
            let past = pasts.entry(figures.queue.clone()).or_default();
            let reading = past.reading(figures, now);
            if session.output.json {
                session.output.json(&reading)?;
            } else {
                table.row(row(&reading, past));
            }
        }
        if session.output.json {
            session.output.flush()?;
        } else {
            screen.show(&watch.prefix, &table)?;
        }
    }
    Ok(())
}

async fn read(watch: &Watch, session: &Session) -> Result<Vec<Option<Figures>>> {
    let queues = names(session, &watch.prefix, false).await?;
    let read = stream::iter(queues).map(|queue| figures(session, queue));
    read.buffered(AT_ONCE).try_collect().await
}

fn row(reading: &Reading, past: &Past) -> [Cell; 8] {
    let figures = &reading.figures;
    let rate = |rate: Option<f64>| match (rate, figures.totals) {
        (Some(rate), _) => number(format!("{rate:.1}")),
        (None, Some(_)) => number(""),
        (None, None) => number(NOT_KNOWN),
    };
    let poison = match figures.poison {
        None => text(""),
        Some(0) => number(0),
        Some(poison) => alarming(poison),
    };
    [
        text(escape(figures.queue.as_str())),
        number(figures.messages),
        rate(reading.put_per_second),
        rate(reading.deleted_per_second),
        poison,
        number(figures.oldest_shown()),
        text(bars(&past.depths)),
        text(state(figures)),
    ]
}

/// Draws the numbers of messages of the last readings, as parts of the largest.
fn bars(depths: &VecDeque<usize>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = depths.iter().copied().max().unwrap_or(0).max(1);
    let bar = |depth: &usize| BARS[(*depth as u128 * 7).div_ceil(most as u128) as usize];
    depths.iter().map(bar).collect()
}

/// Where the tables are shown: on a terminal of their own, one in place of the other, or one after the other.
struct Screen {
    is_terminal: bool,
}

impl Screen {
    fn open(json: bool) -> Result<Self> {
        let is_terminal = !json && io::stdout().is_terminal();
        if is_terminal {
            // The alternate screen, without a cursor.
            write!(io::stdout(), "\u{1b}[?1049h\u{1b}[?25l")?;
        }
        Ok(Self { is_terminal })
    }

    /// Says below the last table that there is no newer one.
    fn fail(&self, failure: &Failure) -> Result<()> {
        let clear = if self.is_terminal { "\u{1b}[K" } else { "" };
        Ok(writeln!(io::stderr(), "{clear}{}", escape(failure.text()))?)
    }

    fn show(&mut self, prefix: &str, table: &Table) -> Result<()> {
        let mut frame = String::new();
        let shown = if table.is_empty() {
            format!("there are no queues {prefix:?}\n")
        } else {
            table.to_string()
        };
        for line in shown.lines() {
            frame.push_str(line);
            // Clears the end of the line, which the last frame may have filled.
            frame.push_str(if self.is_terminal {
                "\u{1b}[K\r\n"
            } else {
                "\n"
            });
        }
        let mut out = anstream::stdout().lock();
        if self.is_terminal {
            write!(out, "\u{1b}[H{frame}\u{1b}[J")?;
        } else {
            writeln!(out, "{frame}")?;
        }
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            // If the terminal is gone, nobody sees the reset.
            let _gone = write!(io::stdout(), "\u{1b}[?25h\u{1b}[?1049l");
            let _gone = io::stdout().flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_drawn_as_parts_of_its_largest_number() {
        assert_eq!(bars(&[0, 1, 4, 8].into()), "▁▂▅█");
        assert_eq!(bars(&[0, 0].into()), "▁▁");
        assert_eq!(bars(&[usize::MAX].into()), "█");
    }
}
