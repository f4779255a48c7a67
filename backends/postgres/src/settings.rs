//! What is set before a connection is used: once for its session, or in each transaction where a pooler gives each another
//! session.

/// Whether the session of a connection lasts beyond a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// There is no pooler, or it gives each connection a session of its own.
    Session,
    /// A pooler gives each transaction a session that others had before.
    Transaction,
}

/// How long a setting lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    Session,
    Transaction,
}

/// The name of a setting of the server, and its value.
pub(crate) type Setting = (&'static str, &'static str);

/// Plans are pinned: each statement reads by an index, one row after the other, whatever the statistics say, which are
/// those of an empty table at first. Time-outs of the role or the database do not apply, because one that ends within a
/// commit leaves its outcome unknown. Only a client that is not heard of within a transaction loses its connection: it
/// would hide its messages beyond their leases.
const OF_ENGINE: &[Setting] = &[
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("lock_timeout", "500ms"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("client_min_messages", "warning"),
];

/// The server notices a client that vanished, whose transaction would hide its message beyond the lease.
const OF_APPLICATION: &[Setting] = &[
    ("client_connection_check_interval", "5s"),
    ("idle_in_transaction_session_timeout", "60s"),
];

/// What only the session of a connection can have.
const OF_CONNECTION: &[Setting] = &[
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "4"),
    ("default_transaction_isolation", "read committed"),
];
const OF_ENGINE_CONNECTION: &[Setting] = &[
    ("default_transaction_read_only", "off"),
    ("idle_session_timeout", "0"),
];

/// A settlement makes the next message of a group visible itself; the trigger on deletions leaves it to that.
pub(crate) const OF_SETTLEMENTS: &[Setting] = &[("queues.next_of_group", "settled")];

/// Returns what the engine sets for its statements, on the tables of a schema.
pub(crate) fn of_engine(schema: &str, also: &[Setting], span: Span) -> String {
    let of_connection = match span {
        Span::Session => [OF_CONNECTION, OF_ENGINE_CONNECTION].concat(),
        Span::Transaction => Vec::new(),
    };
    let is_local = span == Span::Transaction;
    format!(
        "SELECT set_config('transaction_timeout', '0', {is_local}) WHERE current_setting('transaction_timeout', true) IS NOT NULL; \
         {}{}{} SET {}search_path = \"{schema}\"",
        set(&[OF_ENGINE, &of_connection], span),
        durable(span),
        set(&[also], span),
        word(span),
    )
}

/// Returns what the transactions of applications need.
pub(crate) fn of_application(span: Span) -> String {
    let of_connection = match span {
        Span::Session => OF_CONNECTION,
        Span::Transaction => &[],
    };
    set(&[OF_APPLICATION, of_connection], span) + &durable(span)
}

fn set(lists: &[&[Setting]], span: Span) -> String {
    let settings = lists.iter().flat_map(|list| list.iter());
    let set = settings.map(|(name, value)| format!("SET {}{name} = '{value}'; ", word(span)));
    set.collect()
}

/// A commit is written before it is acknowledged, if the user or the database says otherwise.
fn durable(span: Span) -> String {
    let is_local = span == Span::Transaction;
    format!(
        "SELECT set_config('synchronous_commit', 'on', {is_local}) WHERE current_setting('synchronous_commit') = 'off'; "
    )
}

fn word(span: Span) -> &'static str {
    match span {
        Span::Session => "",
        Span::Transaction => "LOCAL ",
    }
}
