use super::*;

const TARGET: Duration = Duration::from_secs(120);

fn load(depth: usize, instances: usize) -> FleetLoad {
    FleetLoad {
        rate: Some(2.0),
        ..FleetLoad::new(depth, instances)
    }
}

fn wanted(load: &FleetLoad) -> usize {
    InstanceTarget::new(0..=100, TARGET)
        .instances(load)
        .instances
}

#[test]
fn the_backlog_is_completed_in_the_time_that_is_left() {
    // 114 s, at two a second.
    for (depth, instances) in [(1, 1), (228, 1), (229, 2), (2_280, 10)] {
        assert_eq!(wanted(&load(depth, 0)), instances, "{depth}");
    }
    let mut late = load(2_280, 0);
    late.oldest = Some(TARGET / 2);
    assert_eq!(wanted(&late), 22, "54 s are left");
    late.oldest = Some(TARGET * 10);
    assert_eq!(wanted(&late), 38, "as if a quarter was left");
}

#[test]
fn new_instances_need_their_start_up() {
    let mut slow = load(2_280, 5);
    slow.start_up = Duration::from_secs(57);
    // Five do half, and each further one half as much as one of them.
    assert_eq!(wanted(&slow), 15);
}

#[test]
fn arrivals_are_expected_to_go_on() {
    let mut growing = load(0, 1);
    growing.arrivals = Some(10.0);
    // 600 more in a minute, and a minute's backlog is allowed: 600 in 120 s.
    assert_eq!(wanted(&growing), 3);
    growing.depth = 600;
    assert_eq!(wanted(&growing), 5);
}

#[test]
fn one_is_not_stopped_for_a_need_near_a_whole_number() {
    assert_eq!(wanted(&load(2 * 228 - 10, 3)), 3);
    assert_eq!(wanted(&load(2 * 228 - 40, 3)), 2);
}

#[test]
fn without_a_rate_one_runs_and_more_if_messages_are_late() {
    let unknown = |depth, instances| FleetLoad::new(depth, instances);
    assert_eq!(wanted(&unknown(0, 3)), 0);
    assert_eq!(wanted(&unknown(10_000, 0)), 1);
    assert_eq!(wanted(&unknown(10_000, 3)), 3);
    let mut late = unknown(10_000, 3);
    late.oldest = Some(TARGET * 2);
    assert_eq!(wanted(&late), 6);
    late.starting = 1;
    assert_eq!(wanted(&late), 3, "one is about to help");
    let mut told = InstanceTarget::new(0..=9, TARGET).with_rate(2.0);
    assert_eq!(told.instances(&unknown(229, 0)).instances, 2);
}

#[test]
fn none_is_added_while_all_processors_are_busy() {
    let mut busy = load(100_000, 2);
    busy.processors = Some(0.99);
    let found = InstanceTarget::new(0..=100, TARGET).instances(&busy);
    assert_eq!(found.instances, 2);
    assert!(
        found.why.ends_with("all processors are busy"),
        "{}",
        found.why
    );
    (busy.instances, busy.wanted) = (0, 0);
    assert!(wanted(&busy) > 2, "they are not busy with this");
}

#[test]
fn extreme_loads_are_survived() {
    let mut load = load(usize::MAX, usize::MAX >> 1);
    load.rate = Some(f64::MIN_POSITIVE);
    load.arrivals = Some(f64::MAX);
    load.start_up = Duration::MAX;
    let mut target = InstanceTarget::new(1..=5, Duration::ZERO);
    assert!(target.instances(&load).instances > 5);
    load.rate = Some(0.0);
    target.instances(&load);
}

#[test]
fn it_is_read_from_a_configuration() {
    let text = "instances = { min = 0, max = 4 }\ntarget = '90s'";
    let read: InstanceTarget = toml::from_str(text).expect("valid");
    assert_eq!(read, InstanceTarget::new(0..=4, Duration::from_secs(90)));
    assert_eq!(read.range(), 0..=4);
}
