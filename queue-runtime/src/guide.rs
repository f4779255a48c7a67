#![doc = include_str!("docs/guide/index.md")]
//!
//! The guides are copies of the repository's pages. A path in parentheses, such as (`docs/design.md`), is that of a
//! file in the repository.

// `cargo xtask guides` makes the copies. With `doctest`, guides are left out whose programs need features that are off.

#[doc = include_str!("docs/guide/readme.md")]
pub mod readme {}

#[doc = include_str!("docs/guide/when_not.md")]
pub mod when_not {}

#[doc = include_str!("docs/guide/which_once.md")]
pub mod which_once {}

#[doc = include_str!("docs/guide/where_is_my_message.md")]
pub mod where_is_my_message {}

#[doc = include_str!("docs/guide/recipes.md")]
pub mod recipes {}

#[doc = include_str!("docs/guide/listener.md")]
pub mod listener {}

#[cfg_attr(
    any(not(doctest), feature = "sqlite"),
    doc = include_str!("docs/guide/testing.md")
)]
pub mod testing {}

#[doc = include_str!("docs/guide/sqlite.md")]
pub mod sqlite {}

#[cfg_attr(
    any(not(doctest), feature = "postgres"),
    doc = include_str!("docs/guide/postgres.md")
)]
pub mod postgres {}

#[cfg_attr(
    any(not(doctest), all(feature = "azure", feature = "object-store")),
    doc = include_str!("docs/guide/azure.md")
)]
pub mod azure {}

#[doc = include_str!("docs/guide/deployment.md")]
pub mod deployment {}

#[doc = include_str!("docs/guide/operating.md")]
pub mod operating {}

#[cfg_attr(
    any(not(doctest), feature = "opentelemetry"),
    doc = include_str!("docs/guide/observability.md")
)]
pub mod observability {}

#[doc = include_str!("docs/guide/settlement.md")]
pub mod settlement {}

#[doc = include_str!("docs/guide/states.md")]
pub mod states {}
