use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Attribute, DeriveInput, Generics, Ident, Path, Type, WherePredicate, parse_quote};

use crate::ast::{Body, Field, Input, Mark, Variant};
use crate::attr::Setting;
use crate::key::shown_type;
use crate::names::name_of_variant;
use crate::problem::Problems;
use crate::valid::{KeyScope, Settings, Wire};

/// Stands in for a kind or queue name that is refused.
const PLACEHOLDER: &str = "refused";

/// Expands to the impl, or to all errors of the item and a placeholder impl.
pub(crate) fn derive(original: &DeriveInput) -> TokenStream {
    let mut problems = Problems::default();
    let input = Input::read(original, &mut problems);
    let settings = Settings::of(&input, &mut problems);
    if problems.is_empty() {
        expand(&input, &settings)
    } else {
        fallback(&input, &settings, &problems)
    }
}

fn expand(input: &Input<'_>, settings: &Settings) -> TokenStream {
    let krate = input.attributes.crate_path();
    let checks = checks(input, settings, &krate);
    let message_type = message_type(settings, &krate);
    // With type parameters, only a use of the type shows what the old version is.
    let (eager, message_type) = if has_type_parameters(input) {
        (None, quote!(#checks #message_type))
    } else {
        let eager = quote!(#[allow(deprecated)] const _: () = { #checks };);
        (Some(eager), message_type)
    };
    let json = decode(input, settings, &krate, &quote!(decode));
    let (encode, decode, decode_event) = if settings.wire == Wire::Lines {
        let lines = decode(input, settings, &krate, &quote!(decode_lines));
        (quote!(encode_lines), lines, Some(json))
    } else {
        (quote!(encode), json, None)
    };
    let methods = Methods {
        key: key(input, &krate),
        group: group(input, &krate),
        encode: quote!(#krate::internal::#encode::<Self>(self)),
        decode,
        decode_event,
    };
    let generics = with_bounds(input, &krate);
    let is_keyed = input.key_fields().next().is_some();
    let impls = impls(input, &krate, &generics, message_type, methods, is_keyed);
    quote! {
        const _: () = {
            #eager
            #impls
        };
    }
}

/// Expands to the errors, and an impl that keeps code that uses the type from causing more.
fn fallback(input: &Input<'_>, settings: &Settings, problems: &Problems) -> TokenStream {
    let errors = problems.to_compile_errors();
    let crate_is_unknown = matches!(input.attributes.krate, Setting::Unreadable);
    let borrows = input.original.generics.lifetimes().next().is_some();
    if crate_is_unknown || borrows {
        return errors;
    }

    let krate = input.attributes.crate_path();
    let mut generics = input.original.generics.clone();
    bound_parameters(&mut generics);
    // The settings that are known are right, so that a type that upgrades from this one raises no error.
    let Settings {
        kind,
        version,
        queue,
        ..
    } = settings;
    // `MessageType::new` would refuse an invalid kind or queue once more.
    let kind = Some(kind.as_str()).filter(|kind| !kind.is_empty());
    let kind = kind.unwrap_or(PLACEHOLDER);
    let queue = Some(queue.as_str()).filter(|queue| queue_names::check(queue).is_ok());
    let queue = queue.unwrap_or(PLACEHOLDER);

    let message_type =
        quote!(#krate::message::MessageType::new(#kind, #queue).with_version(#version));
    let body = quote!(::core::unreachable!());
    let methods = Methods {
        key: body.clone(),
        group: None,
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

/// The bodies of the methods of `Message`.
struct Methods {
    key: TokenStream,
    /// The body of `group`, if there are group fields.
    group: Option<TokenStream>,
    encode: TokenStream,
    decode: TokenStream,
    /// The body of `decode_event`, if the data of events is JSON and other payloads are not.
    decode_event: Option<TokenStream>,
}

/// Returns the impl of `Message` with the bodies of its methods, and of `KeyedMessage` if the item is keyed. `generics`
/// are those of the item, with further bounds.
fn impls(
    input: &Input<'_>,
    krate: &Path,
    generics: &Generics,
    message_type: TokenStream,
    methods: Methods,
    is_keyed: bool,
) -> TokenStream {
    let Methods {
        key,
        group,
        encode,
        decode,
        decode_event,
    } = methods;
    let encodes_json = decode_event.is_none();
    let decode_event = decode_event.map(|body| decoding(krate, &quote!(decode_event), &body));
    let decode = decoding(krate, &quote!(decode), &decode);
    let group = group.map(|body| {
        quote! {
            fn group(&self) -> ::core::result::Result<
                ::core::option::Option<::std::string::String>,
                #krate::message::EncodeError,
            > {
                #body
            }
        }
    });
    let ident = &input.original.ident;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = input.original.generics.split_for_impl();
    let keyed = is_keyed.then(|| {
        quote! {
            #[automatically_derived]
            #[allow(deprecated, trivial_bounds)]
            impl #impl_generics #krate::message::KeyedMessage for #ident #ty_generics #where_clause {}
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(deprecated, trivial_bounds)]
        impl #impl_generics #krate::Message for #ident #ty_generics #where_clause {
            const TYPE: #krate::message::MessageType = { #message_type };

            const ENCODES_JSON: ::core::primitive::bool = #encodes_json;

            fn key(&self) -> ::core::result::Result<
                ::core::option::Option<::std::vec::Vec<#krate::internal::Value>>,
                #krate::message::EncodeError,
            > {
                #key
            }

            #group

            fn encode(&self) -> ::core::result::Result<
                ::std::vec::Vec<::core::primitive::u8>,
                #krate::message::EncodeError,
            > {
                #encode
            }

            #decode

            #decode_event
        }

        #keyed
    }
}

fn decoding(krate: &Path, name: &TokenStream, body: &TokenStream) -> TokenStream {
    quote! {
        fn #name(
            __version: ::core::primitive::u32,
            __payload: &[::core::primitive::u8],
        ) -> ::core::result::Result<Self, #krate::message::DecodeError> {
            #body
        }
    }
}

/// Adds the bounds that any impl for an item with type parameters needs.
fn bound_parameters(generics: &mut Generics) {
    let parameters: Vec<Ident> = generics.type_params().map(|t| t.ident.clone()).collect();
    if parameters.is_empty() {
        return;
    }
    let bounds = &mut generics.make_where_clause().predicates;
    bounds.push(parse_quote!(Self: ::core::marker::Send));
    for parameter in parameters {
        bounds.push(parse_quote!(#parameter: 'static));
    }
}

fn has_type_parameters(input: &Input<'_>) -> bool {
    input.original.generics.type_params().next().is_some()
}

/// Adds the bounds that the impl's methods need.
///
/// Bounds the item rather than its parameters, because only serde's derive knows what it requires of
/// those. A bound, rather than a failing call, makes a missing serde derive one error.
fn with_bounds(input: &Input<'_>, krate: &Path) -> Generics {
    let mut generics = input.original.generics.clone();
    let at = at(input.original.ident.span());
    let payload = quote_spanned!(at=> Self: #krate::internal::SerdePayload);
    let bounds = &mut generics.make_where_clause().predicates;
    bounds.push(parse_quote!(#payload));
    bound_parameters(&mut generics);
    let parameters: Vec<Ident> = generics.type_params().map(|t| t.ident.clone()).collect();
    if parameters.is_empty() {
        return generics;
    }
    let bounds = &mut generics.make_where_clause().predicates;
    for field in Mark::ALL.iter().flat_map(|mark| input.marked(*mark)) {
        let ty = field.ty();
        if mentions(quote!(#ty), &parameters) {
            bounds.push(parse_quote!(#ty: #krate::internal::Serialize));
        }
    }
    if let Some(old) = input.attributes.upgrade_from.given() {
        let upgrade: [WherePredicate; 2] = [
            parse_quote!(#old: #krate::Message),
            parse_quote!(Self: #krate::internal::UpgradeFrom<#old>),
        ];
        bounds.extend(upgrade);
    }
    generics
}

fn mentions(tokens: TokenStream, names: &[Ident]) -> bool {
    tokens.into_iter().any(|tree| match tree {
        proc_macro2::TokenTree::Ident(ident) => names.contains(&ident),
        proc_macro2::TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

/// Checks of the old version that only the compiler can make.
fn checks(input: &Input<'_>, settings: &Settings, krate: &Path) -> TokenStream {
    let Some(old) = input.attributes.upgrade_from.given() else {
        return TokenStream::new();
    };
    let Settings { kind, version, .. } = settings;
    let shown = shown_type(old);
    let wrong_kind = format!(
        "`upgrade_from = {shown}` needs a type of the same kind: give `{shown}` the attribute \
         `kind = {kind:?}`"
    );
    let wrong_version =
        format!("`upgrade_from = {shown}` needs a type of a version lower than {version}");
    let at = at(old.span());
    quote_spanned! {at=>
        ::core::assert!(
            #krate::internal::str_eq(<#old as #krate::Message>::TYPE.kind(), #kind),
            #wrong_kind
        );
        ::core::assert!(<#old as #krate::Message>::TYPE.version() < #version, #wrong_version);
    }
}

fn message_type(settings: &Settings, krate: &Path) -> TokenStream {
    let Settings {
        kind,
        aliases,
        version,
        queue,
        wire,
        visibility_timeout,
        time_to_live,
        poison_threshold,
        poison_queue,
        key_scope,
        compress,
        packed,
        tracked,
        history,
        history_age,
        has_groups,
    } = settings;
    let duration = |duration: &std::time::Duration| {
        let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
        quote!(#krate::internal::Duration::new(#seconds, #nanos))
    };
    let visibility_timeout = visibility_timeout.as_ref().map(duration).into_iter();
    let time_to_live = time_to_live.as_ref().map(duration).into_iter();
    let history = history.iter();
    let history_age = history_age.as_ref().map(duration).into_iter();
    let poison_threshold = poison_threshold.iter();
    let poison_queue = poison_queue.iter();
    let wire = (*wire != Wire::Event).then(|| {
        let form = format_ident!("{wire:?}");
        quote!(.with_wire(#krate::message::Wire::#form))
    });
    let key_scope = (*key_scope == KeyScope::Global)
        .then(|| quote!(.with_key_scope(#krate::message::KeyScope::Global)));
    let compress = compress.then(|| quote!(.with_compression()));
    let packed = packed.then(|| quote!(.with_packing()));
    let tracked = tracked.then(|| quote!(.with_tracking()));
    let groups = has_groups.then(|| quote!(.with_groups()));
    quote! {
        #krate::message::MessageType::new(#kind, #queue)
            .with_aliases(&[#(#aliases),*])
            .with_version(#version)
            #wire
            #(.with_visibility_timeout(#visibility_timeout))*
            #(.with_time_to_live(#time_to_live))*
            #(.with_poison_threshold(#poison_threshold))*
            #(.with_poison_queue(#poison_queue))*
            #key_scope
            #compress
            #packed
            #tracked
            #(.with_history(#history))*
            #(.with_history_age(#history_age))*
            #groups
    }
}

fn key(input: &Input<'_>, krate: &Path) -> TokenStream {
    if input.key_fields().next().is_none() {
        return quote!(::core::result::Result::Ok(::core::option::Option::None));
    }
    let fields = match &input.body {
        Body::Struct(fields) => {
            let fields = fields.iter().filter(|field| field.is_key).map(|field| {
                let member = &field.member;
                key_field(field, quote!(&self.#member), krate)
            });
            quote!(::core::option::Option::Some(::std::vec![#(#fields),*]))
        }
        Body::Enum(variants) => {
            let on_enum = &input.original.attrs;
            let arms = variants
                .iter()
                .filter_map(|variant| key_arm(on_enum, variant, krate));
            let unkeyed = variants
                .iter()
                .any(|variant| !variant.fields.iter().any(|field| field.is_key));
            let rest = unkeyed.then(|| quote!(_ => ::core::option::Option::None,));
            quote!(match self { #(#arms)* #rest })
        }
        Body::Union => TokenStream::new(),
    };
    quote!(::core::result::Result::Ok(#fields))
}

/// Returns the body of `group`, unless no field is marked. Variants with equal fields share a group.
fn group(input: &Input<'_>, krate: &Path) -> Option<TokenStream> {
    input.marked(Mark::Group).next()?;
    let of = |values: TokenStream| {
        quote!(::core::result::Result::Ok(::core::option::Option::Some(
            #krate::internal::group(::std::vec![#values])
        )))
    };
    match &input.body {
        Body::Struct(fields) => {
            let fields = fields.iter().filter(|field| field.is_group).map(|field| {
                let member = &field.member;
                key_field(field, quote!(&self.#member), krate)
            });
            Some(of(quote!(#(#fields),*)))
        }
        Body::Enum(variants) => {
            let arms = variants.iter().filter_map(|variant| {
                let (pattern, values) = marked_fields(variant, Mark::Group, krate)?;
                let group = of(values);
                Some(quote!(#pattern => #group,))
            });
            let ungrouped = |variant: &Variant<'_>| !variant.fields.iter().any(|it| it.is_group);
            let rest = variants
                .iter()
                .any(ungrouped)
                .then(|| quote!(_ => ::core::result::Result::Ok(::core::option::Option::None),));
            Some(quote!(match self { #(#arms)* #rest }))
        }
        Body::Union => None,
    }
}

/// Puts the variant's name first, so that equal fields of two variants make different keys. The name is serde's, so
/// that a renamed variant that keeps its name on the wire also keeps its keys.
fn key_arm(on_enum: &[Attribute], variant: &Variant<'_>, krate: &Path) -> Option<TokenStream> {
    let (pattern, values) = marked_fields(variant, Mark::Key, krate)?;
    let name = name_of_variant(on_enum, variant.original);
    Some(quote! {
        #pattern => ::core::option::Option::Some(::std::vec![
            #krate::internal::key_name(#name),
            #values
        ]),
    })
}

/// Returns the pattern that binds the marked fields of a variant, and their values; `None` if there are none.
fn marked_fields(
    variant: &Variant<'_>,
    mark: Mark,
    krate: &Path,
) -> Option<(TokenStream, TokenStream)> {
    let fields: Vec<_> = variant.fields.iter().filter(|it| it.has(mark)).collect();
    if fields.is_empty() {
        return None;
    }
    let ident = &variant.original.ident;
    let members = fields.iter().map(|field| &field.member);
    let bindings: Vec<_> = (0..fields.len())
        .map(|at| format_ident!("__{mark}{at}", mark = mark.to_string()))
        .collect();
    let values = fields
        .iter()
        .zip(&bindings)
        .map(|(field, binding)| key_field(field, quote!(#binding), krate));
    Some((
        quote!(Self::#ident { #(#members: #bindings,)* .. }),
        quote!(#(#values),*),
    ))
}

fn key_field(field: &Field<'_>, value: TokenStream, krate: &Path) -> TokenStream {
    let name = field.name();
    let at = at(field.ty().span());
    quote_spanned!(at=> #krate::internal::key_field::<Self, _>(#name, #value)?)
}

/// Returns the body of a method that decodes the type's own version by this function, and others by their upgrade.
fn decode(
    input: &Input<'_>,
    settings: &Settings,
    krate: &Path,
    function: &TokenStream,
) -> TokenStream {
    let current = settings.version;
    let upgrade = input.attributes.upgrade_from.given().map(|old: &Type| {
        let at = at(old.span());
        quote_spanned! {at=>
            if __version <= <#old as #krate::Message>::TYPE.version() {
                return ::core::result::Result::Ok(#krate::internal::upgrade::<Self, #old>(
                    <#old as #krate::Message>::decode(__version, __payload)?,
                ));
            }
        }
    });
    quote! {
        if __version == #current {
            return #krate::internal::#function::<Self>(__payload);
        }
        #upgrade
        ::core::result::Result::Err(#krate::internal::wrong_version::<Self>(__version))
    }
}

/// A span that errors underline as `span`, and in which names resolve at the macro's call site.
fn at(span: Span) -> Span {
    Span::call_site().located_at(span)
}
