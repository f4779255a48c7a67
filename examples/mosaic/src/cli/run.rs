use std::fmt;
use std::time::{Duration, Instant};

use crate::output::Output;
use crate::workflow::client::{Client, ClientError, Job};
use crate::workflow::messages::{Figures, ImageOutcome};
use crate::workflow::roles::Settings;
use queue_runtime::meter::TransactionKind;
use queue_runtime::service::StopSignals;
use queue_runtime::{Failure, RequestId};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::Bars;
use super::agent::Workers;
use super::arguments::{Location, Picture, Run, Submit, or_cores};
use super::job::job;
use super::location::{is_durable, open, pictures};

/// The time that handlers have to finish once the mosaic is complete, or after a signal to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Makes a mosaic with all roles in this process.
pub(crate) async fn run(arguments: Run, bars: Bars) -> Result<(), Failure> {
    let begun = Instant::now();
    let (picture, location) = (&arguments.picture, &arguments.location);
    let mut signals = StopSignals::new()?;
    let request = request(picture)?;
    let going_on = if is_durable(location) {
        format!("to go on, repeat the command with `--request-id {request}`")
    } else {
        "with `--data FOLDER` and `--request-id ID`, the same command goes on after a stop"
            .to_owned()
    };
    picture.out.check()?;
    let (data, mut temporary) = match location.data.clone() {
        Some(data) => (data, None),
        None => {
            let temporary = tempfile::Builder::new().prefix("mosaic-").tempdir()?;
            (temporary.path().to_owned(), Some(temporary))
        }
    };
    let ready = async {
        let job = read(picture, location, &bars).await?;
        Ok::<_, Failure>((job, open(&data, location).await?))
    };
    let (job, (service, store)) = tokio::select! {
        ready = ready => ready?,
        _ = signals.next() => return Err(stopped(&going_on)),
    };
    let settings = Settings {
        pace: arguments.scaling.pace,
        ..Settings::default()
    };
    let scaling = &arguments.scaling;
    let mut workers = Workers::start(
        (&service, &store),
        (&data, location),
        (arguments.processors, scaling),
        &settings,
    )?;
    let tiles = job.library.tile_count();
    let client = Client::new(service.clone(), store);
    let kept = if is_durable(location) {
        &mut None
    } else {
        &mut temporary
    };
    let made = tokio::select! {
        made = make(&client, job, picture, &request, &bars, kept) => made,
        failure = workers.roles.failed() => Err(failure),
        _ = signals.next() => Err(stopped(&going_on)),
    };
    let totals = tokio::select! {
        totals = workers.shutdown(GRACE) => Some(totals),
        // A signal stops the roles at once, also one after that which stopped the job.
        _ = signals.next() => None,
    };
    println!("{}", describe(&made?, &picture.out, tiles));
    let processors = match &scaling.instances {
        Some(range) => format!("{} to {} processors", range.start(), range.end()),
        None => match or_cores(arguments.processors) {
            1 => "1 processor".to_owned(),
            number => format!("{number} processors"),
        },
    };
    let handled = totals.map_or_else(String::new, |totals| {
        let messages = totals.completed + totals.poisoned;
        format!("; {messages} messages, {} retries", totals.retried)
    });
    let transactions = service.meter().total();
    println!(
        "made in {:.1?} by {processors}{handled}; {} storage transactions, {} of them empty receives",
        begun.elapsed(),
        transactions.total(),
        transactions.of(TransactionKind::EmptyReceive),
    );
    Ok(())
}

/// Submits a job to roles in other processes, and waits for the mosaic.
pub(crate) async fn submit(arguments: Submit, bars: Bars) -> Result<(), Failure> {
    let begun = Instant::now();
    let (picture, location) = (&arguments.picture, &arguments.location);
    let mut signals = StopSignals::new()?;
    let request = request(picture)?;
    picture.out.check()?;
    let making = async {
        let job = read(picture, location, &bars).await?;
        let (service, store) = open(&location.folder(), location).await?;
        let tiles = job.library.tile_count();
        let client = Client::new(service, store);
        let figures = make(&client, job, picture, &request, &bars, &mut None).await?;
        Ok::<_, Failure>((figures, tiles))
    };
    let going_on =
        format!("the roles go on; repeat the command with `--request-id {request}` for the mosaic");
    let (figures, tiles) = tokio::select! {
        made = making => made?,
        _ = signals.next() => return Err(stopped(&going_on)),
    };
    println!("{}", describe(&figures, &picture.out, tiles));
    println!(
        "made in {:.1?}; {} messages, {} retries; request {request}",
        begun.elapsed(),
        2 + 2 * figures.slices,
        figures.retries,
    );
    Ok(())
}

fn request(picture: &Picture) -> Result<RequestId, Failure> {
    let given = picture.request_id.clone().map(RequestId::new);
    Ok(given.transpose()?.unwrap_or_else(RequestId::random))
}

async fn read(picture: &Picture, location: &Location, bars: &Bars) -> Result<Job, Failure> {
    bars.step("reading");
    let tiles = match &picture.library_container {
        Some(container) => Some(pictures(container, location).await?),
        None => None,
    };
    let picture = picture.clone();
    let (job, skipped) = spawn_blocking(move || job(&picture, tiles)).await??;
    for (name, error) in skipped {
        let reason = Failure::reject(error).chain();
        bars.warn(&format!("skipped the tile `{name}`: {reason}"));
    }
    Ok(job)
}

/// Submits a job, and writes the mosaic to its file. `temporary` is the folder of the blobs, if that is temporary.
async fn make(
    client: &Client,
    job: Job,
    picture: &Picture,
    request: &RequestId,
    bars: &Bars,
    temporary: &mut Option<TempDir>,
) -> Result<Figures, Failure> {
    bars.step("uploading");
    client.submit(job, request).await?;
    bars.step("planning");
    let progress = |done, total| bars.slices(done, total);
    let outcome = client.follow(request, picture.timeout, progress).await?;
    bars.finish();
    let made = match outcome {
        ImageOutcome::Done { image, figures } => {
            let saved = match client.mosaic(request, &image, figures.bytes).await {
                Ok(mosaic) => picture.out.save(mosaic).await.map_err(Failure::from),
                Err(gone @ ClientError::Gone(_)) => return Err(gone.into()),
                Err(error) => Err(error.into()),
            };
            let kept = |error| kept(error, request, &picture.out, temporary.take());
            saved.map_err(kept)?;
            Ok(figures)
        }
        ImageOutcome::Failed { reason } => Err(reason.into()),
    };
    discard(client, picture, request).await;
    made
}

/// Removes the blobs of a finished request, unless they are to be kept.
async fn discard(client: &Client, picture: &Picture, request: &RequestId) {
    if !picture.keep
        && let Err(error) = client.discard(request).await
    {
        let error = Failure::retry(error).chain();
        eprintln!(
            "warning: failed to remove the blobs of request {request}: {error}; `mosaic clean` removes them"
        );
    }
}

/// The error for a mosaic that could not be saved, but is not lost.
fn kept(error: Failure, request: &RequestId, out: &Output, temporary: Option<TempDir>) -> Failure {
    let (chain, out) = (error.chain(), out.path().display());
    let data = temporary.map_or_else(String::new, |folder| {
        format!("`--data {}`, ", folder.keep().display())
    });
    format!(
        "{chain}; the mosaic is complete: unless it was removed, the same command saves it with {data}`--request-id \
         {request}` and another file than `{out}`"
    )
    .into()
}

fn stopped(going_on: &dyn fmt::Display) -> Failure {
    format!("it was stopped by a signal; {going_on}").into()
}

fn describe(figures: &Figures, out: &Output, tiles: usize) -> String {
    let (width, height) = (figures.width, figures.height);
    let (places, slices) = (figures.tiles, figures.slices);
    let out = out.path().display();
    format!("{out}: {width}×{height} pixels, {places} tiles from {tiles} pictures, {slices} slices")
}
