use proc_macro2::TokenStream;
use queue_core::QueueName;
use quote::quote;

use crate::ast::Input;
use crate::attr::Setting;
use crate::expand::{Methods, bound_parameters, impls};
use crate::problem::Problems;
use crate::valid::Settings;

/// Stands in for a kind or queue name that is refused.
const PLACEHOLDER: &str = "refused";

/// Expands to the errors, and an impl that keeps code that uses the type from causing more.
pub(crate) fn expand(input: &Input<'_>, settings: &Settings, problems: &Problems) -> TokenStream {
    let errors = problems.to_compile_errors();
    let crate_is_unknown = matches!(input.attributes.krate, Setting::Unreadable);
    let borrows = input.original.generics.lifetimes().next().is_some();
    if crate_is_unknown || borrows {
        return errors;
    }

    let krate = input.attributes.crate_path();
    let mut generics = input.original.generics.clone();
    bound_parameters(&mut generics);
    // What is known of them is right, so that a type that upgrades from this one raises no error.
    let Settings {
        kind,
        version,
        queue,
        ..
    } = settings;
    // `MessageType::new` would refuse these once more.
    let kind = Some(kind.as_str()).filter(|kind| !kind.is_empty());
    let kind = kind.unwrap_or(PLACEHOLDER);
    let queue = Some(queue.as_str()).filter(|queue| QueueName::check(queue).is_ok());
    let queue = queue.unwrap_or(PLACEHOLDER);

    let message_type =
        quote!(#krate::message::MessageType::new(#kind, #queue).with_version(#version));
    let body = quote!(::core::unreachable!());
    let methods = Methods {
        key: body.clone(),
        encode: body.clone(),
        decode: body,
        decode_event: None,
    };
    let impls = impls(input, &krate, &generics, message_type, methods, true);
    quote! {
        #errors

        const _: () = { #impls };
    }
}
