//! What a process does that is interrupted, and what must be so afterwards: nothing is lost, nothing is left, and nothing
//! that is done is done again.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use queue_runtime::backend::{Backend, BackendExt};
use queue_runtime::error::Outcome;
use queue_runtime::{Disposition, ListenerBuilder, Message, QueueName, QueueService, Received};

use crate::payloads::life::Life;
use crate::payloads::support::{Film, Trailer, World, film, note};

type Step<'a> = BoxFuture<'a, Result<(), Box<dyn Error + Send + Sync>>>;

/// What a process does that is interrupted.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    before: for<'a> fn(&'a World, &'a QueueService) -> Step<'a>,
    act: for<'a> fn(&'a World, &'a QueueService) -> Step<'a>,
    /// How often the film may be handled although it was handled before and is not marked as done.
    again: usize,
}

const FILM: &str = "film";
pub(crate) const SCENES: [Scene; 7] = [
    Scene {
        name: "submit",
        before: nothing,
        act: submit,
        again: 0,
    },
    Scene {
        name: "handle",
        before: submit,
        act: handle,
        again: 1,
    },
    Scene {
        name: "follow up",
        before: submit,
        act: follow_up,
        again: 1,
    },
    Scene {
        name: "poison",
        before: submit,
        act: poison,
        again: 0,
    },
    Scene {
        name: "redrive",
        before: submit_and_poison,
        act: redrive,
        again: 0,
    },
    // A redrive that was interrupted moves the message again, with the same id.
    Scene {
        name: "redrive elsewhere",
        before: submit_elsewhere,
        act: redrive_elsewhere,
        again: 1,
    },
    Scene {
        name: "sweep",
        before: leave_payloads,
        act: sweep,
        again: 0,
    },
];

fn nothing<'a>(_: &'a World, _: &'a QueueService) -> Step<'a> {
    Box::pin(async { Ok(()) })
}

fn submit<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        match service.submit(film(FILM)).await {
            Ok(_) => world.acknowledge(FILM),
            Err(error) if error.outcome() == Outcome::NotDone => world.refuse(FILM),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })
}

fn submit_elsewhere<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        service
            .submit(film(FILM))
            .to(POISON)
            .expect("a name")
            .await?;
        world.acknowledge(FILM);
        Ok(())
    })
}

fn handle<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        if let Some(delivery) = service.accept::<Film>().await? {
            world.handle(&delivery.title);
            delivery.complete().await?;
        }
        Ok(())
    })
}

fn follow_up<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        if let Some(delivery) = service.accept::<Film>().await? {
            world.handle(&delivery.title);
            let Film { title, frames } = delivery.message().clone();
            let title = format!("trailer of {title}");
            let trailer = Disposition::complete().then(&Trailer {
                title: title.clone(),
                frames,
            });
            delivery.settle(trailer).await?;
            world.acknowledge(&title);
        }
        Ok(())
    })
}

fn poison<'a>(_: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        if let Some(delivery) = service.accept::<Film>().await? {
            delivery.reject("the reel is torn").await?;
        }
        Ok(())
    })
}

fn submit_and_poison<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        submit(world, service).await?;
        poison(world, service).await
    })
}

fn redrive<'a>(_: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        let films = service.queue::<Film>().poison()?;
        films.redrive().run().await?;
        Ok(())
    })
}

fn redrive_elsewhere<'a>(_: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        let poisoned = service.queue::<Film>().poison()?;
        poisoned.redrive().unrecorded_to(FILMS)?.run().await?;
        Ok(())
    })
}

/// Leaves payloads of submissions that were interrupted at each point.
fn leave_payloads<'a>(world: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        for requests in 0..8 {
            let life = Life::of(requests);
            let dying = world.process(&life).await;
            let title = format!("interrupted after {requests}");
            tokio::select! {
                biased;
                submitted = dying.submit(film(&title)) => {
                    submitted?;
                    world.acknowledge(&title);
                    break;
                }
                () = life.over() => world.refuse(&title),
            }
        }
        tokio::time::sleep(world.rest).await;
        drain(world, service).await;
        Ok(())
    })
}

fn sweep<'a>(_: &'a World, service: &'a QueueService) -> Step<'a> {
    Box::pin(async move {
        let payloads = service.payloads().expect("it has a store");
        payloads.sweep().run().await?;
        Ok(())
    })
}

const FILMS: QueueName = QueueName::from_static("films");
const POISON: QueueName = QueueName::from_static("films-poison");
const QUEUES: [QueueName; 3] = [FILMS, POISON, QueueName::from_static("trailers")];

async fn drain(world: &World, service: &QueueService) {
    let film = async |handled: Handled, film: Received<Film>| note(&handled, &film.title);
    let films = service.listener_with(Arc::clone(&world.handled), film);
    drained(films).await;
    let trailer = async |handled: Handled, trailer: Received<Trailer>| {
        note(&handled, &trailer.title);
    };
    let trailers = service.listener_with(Arc::clone(&world.handled), trailer);
    drained(trailers).await;
}

async fn drained<M: Message>(listener: ListenerBuilder<M>) {
    let listener = listener.until_empty().start().expect("starts");
    let report = listener.drained().await;
    assert_eq!(report.info.retried, 0);
}

type Handled = Arc<Mutex<Vec<String>>>;

/// Lets everything happen that is still to happen, and checks that nothing is left.
async fn finish(world: &World, told: &str) {
    let service = world.process(&Life::endless()).await;
    tokio::time::sleep(world.rest).await;
    drain(world, &service).await;
    for act in [redrive, redrive_elsewhere] {
        act(world, &service)
            .await
            .unwrap_or_else(|error| panic!("{told}: {error}"));
        drain(world, &service).await;
    }
    for queue in QUEUES {
        let read = world.storage.properties(&queue).await;
        let left = read.expect("it exists").approximate_count;
        assert_eq!(left, 0, "{told}: messages are left on {queue:?}");
    }
    // A sweep creates no container, and a process that ended before its first payload has not.
    let prepared = world.store.prepare().await;
    prepared.unwrap_or_else(|error| panic!("{told}: {error}"));
    let swept = sweep(world, &service).await;
    swept.unwrap_or_else(|error| panic!("{told}: {error}"));
    let objects = world.objects().await;
    let data: Vec<_> = objects
        .iter()
        .filter(|name| name.starts_with("data/"))
        .collect();
    assert!(data.is_empty(), "{told}: {data:?} are left");
}

/// Lets the marks become so old that nobody needs them.
async fn forget(world: &World, told: &str) {
    let service = world.process(&Life::endless()).await;
    // A store may tell whole seconds.
    tokio::time::sleep(world.retention + Duration::from_secs(2)).await;
    let sweep = service.payloads().expect("it has a store").sweep();
    let sweep = sweep.mark_retention(world.retention);
    sweep.run().await.expect("swept");
    // By which a sweep that died learned the time; one an hour later deletes it.
    let is_young = |name: &str| world.is_real() && name.starts_with("clock/");
    let left = world.objects().await;
    let is_expected = |name: &String| name == "identity" || is_young(name);
    assert!(left.iter().all(is_expected), "{told}: {left:?}");
}

fn check(world: &World, scene: &Scene, before: &[String], was_marked: bool, told: &str) {
    let handled = world.handled();
    for title in world.acknowledged() {
        assert!(handled.contains(&title), "{told}: {title} is lost");
    }
    let times = |title: &str, all: &[String]| all.iter().filter(|one| *one == title).count();
    for title in world.refused() {
        assert_eq!(
            times(&title, &handled),
            0,
            "{told}: {title} was refused and is handled"
        );
    }
    let (now, then) = (times(FILM, &handled), times(FILM, before));
    if was_marked {
        assert_eq!(now, then, "{told}: it was done");
    }
    // A lease that ends on a slow machine has the film handled again.
    let is_bounded = world.is_real() || now <= 1 + scene.again;
    assert!(is_bounded, "{told}: handled {now} times");
}

/// Interrupts the process after so many requests. Returns false if it makes no more than that, or was not interrupted.
pub(crate) async fn interrupt(
    world: World,
    scene: &Scene,
    requests: usize,
    comes_back: bool,
) -> bool {
    let told = format!("{} after {requests} requests, {comes_back}", scene.name);
    for queue in QUEUES {
        let created = world.storage.ensure_queue(&queue).await;
        created.expect("created");
    }
    let prepared = world.process(&Life::endless()).await;
    match (scene.before)(&world, &prepared).await {
        Ok(()) => {}
        // A slow machine ends a lease, or a connection, before there is anything to interrupt.
        Err(error) if world.is_real() => {
            println!("{told}, not prepared: {error}");
            return false;
        }
        Err(error) => panic!("{told}: {error}"),
    }
    let life = Life::of(requests);
    let service = world.process(&life).await;
    let mut act = (scene.act)(&world, &service);
    let is_over = tokio::select! {
        biased;
        acted = &mut act => {
            match acted {
                Ok(()) => {}
                Err(error) if world.is_real() => println!("{told}: {error}"),
                Err(error) => panic!("{told}: {error}"),
            }
            true
        }
        () = life.over() => false,
    };
    let before = world.handled();
    let was_marked = scene.name == "handle"
        && world
            .objects()
            .await
            .iter()
            .any(|name| name.starts_with("done/"));
    if comes_back && !is_over {
        finish(&world, &told).await;
        life.go_on();
        // Whatever it says: it was away for long.
        let _ = act.await;
    } else {
        drop(act);
    }
    finish(&world, &told).await;
    forget(&world, &told).await;
    check(&world, scene, &before, was_marked, &told);
    !is_over
}
