use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use crate::web::{Pages, Tiles};
use crate::workflow::roles::Settings;
use pictures::Library;
use queue_cost::PriceTable;
use queue_runtime::Failure;
use queue_runtime::service::StopSignals;
use web_guard::Guard;

use super::agent::Workers;
use super::arguments::Serve;
use super::job::library;
use super::location::open;

/// The time that handlers have to finish after the signal to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Serves the broker's page until a signal to stop. A second signal ends the time that handlers have to finish.
pub(crate) async fn serve(arguments: Serve) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    let (location, data) = (&arguments.location, arguments.location.folder());
    let prices = PriceTable::read(arguments.prices.as_deref())?;
    let port = arguments.port;
    let bound = Guard::bind(port).await;
    let (guard, listener) = bound.map_err(|error| {
        format!("listen at port {port} of 127.0.0.1: {error}; choose another with `--port`, 0 for a free one")
    })?;
    let (service, store) = tokio::select! {
        opened = open(&data, location) => opened?,
        _ = signals.next() => return Ok(()),
    };
    let settings = Settings {
        pace: arguments.scaling.pace,
        ..Settings::default()
    };
    let mut workers = if arguments.broker_only {
        Workers::broker(&service, &store, &settings)
    } else {
        let processors = (arguments.processors, &arguments.scaling);
        Workers::start((&service, &store), (&data, location), processors, &settings)?
    };
    let built_in = || Ok(Library::load(&Library::built_in_files())?);
    let mut tiles = vec![Tiles::new("built-in tiles", built_in)];
    for folder in arguments.library.clone() {
        let name = folder.display().to_string();
        tiles.push(Tiles::new(name, move || library(&folder)));
    }
    let pages = Pages::new(guard.clone(), &service, &store, tiles, prices);
    pages.go_on().await?;
    println!("open {} (works once)", guard.login_link());
    std::io::stdout().flush()?;
    let mut serving = pin!(pages.serve(listener));
    let ended = tokio::select! {
        () = &mut serving => unreachable!("only `end` ends it"),
        () = pages.run() => Ok(()),
        failure = workers.roles.failed() => Err(failure),
        _ = signals.next() => Ok(()),
    };
    let stopping = async {
        tokio::join!(serving, pages.end());
        workers.shutdown(GRACE).await
    };
    tokio::select! {
        _ = stopping => {}
        _ = signals.next() => {}
    }
    service.shutdown(Duration::ZERO).await;
    ended
}
