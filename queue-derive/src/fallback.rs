use proc_macro2::TokenStream;
use queue_core::QueueName;
use quote::quote;
use syn::parse_quote;

use crate::ast::Input;
use crate::attr::Setting;
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
    let ident = &input.original.ident;
    let mut generics = input.original.generics.clone();
    let parameters: Vec<_> = generics.type_params().map(|t| t.ident.clone()).collect();
    if !parameters.is_empty() {
        let bounds = &mut generics.make_where_clause().predicates;
        bounds.push(parse_quote!(Self: ::core::marker::Send));
        for parameter in parameters {
            bounds.push(parse_quote!(#parameter: 'static));
        }
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.original.generics.split_for_impl();
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

    quote! {
        #errors

        const _: () = {
            #[automatically_derived]
            impl #impl_generics #krate::Message for #ident #ty_generics #where_clause {
                const TYPE: #krate::message::MessageType =
                    #krate::message::MessageType::new(#kind, #queue).with_version(#version);

                fn key(&self) -> ::core::result::Result<
                    ::core::option::Option<::std::vec::Vec<#krate::internal::Value>>,
                    #krate::message::EncodeError,
                > {
                    ::core::unreachable!()
                }

                fn encode(&self) -> ::core::result::Result<
                    ::std::vec::Vec<::core::primitive::u8>,
                    #krate::message::EncodeError,
                > {
                    ::core::unreachable!()
                }

                fn decode(
                    _: ::core::primitive::u32,
                    _: &[::core::primitive::u8],
                ) -> ::core::result::Result<Self, #krate::message::DecodeError> {
                    ::core::unreachable!()
                }
            }

            #[automatically_derived]
            impl #impl_generics #krate::message::KeyedMessage for #ident #ty_generics #where_clause {}
        };
    }
}
