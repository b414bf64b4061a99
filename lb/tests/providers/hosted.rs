//! Stand-ins for hosted APIs, and the documents that name them.

use engine::{Engine, Settings, Tls};

use crate::pki::{Authority, Leaf};
use crate::support::engines::{ALIAS, MODEL, engine_of};
use crate::support::{Driver, Gateway, Setup};

/// The name that stand-ins have a certificate for.
pub(crate) const HOST: &str = "localhost";

/// The credential that stand-ins are sent.
pub(crate) const TOKEN: &str = "sesame-open-9c1f";

/// A stand-in that answers as fast as it can.
pub(crate) fn hosted(leaf: &Leaf) -> Engine {
    hosted_with(leaf, Settings::instant())
}

/// A stand-in with other settings.
pub(crate) fn hosted_with(leaf: &Leaf, settings: Settings) -> Engine {
    let tls = Tls::from_pem(leaf.certificate_pem.as_bytes(), leaf.key_pem().as_bytes()).unwrap();
    engine_of(Settings { tls: Some(tls), ..settings })
}

/// An authority and a certificate of it for [`HOST`].
pub(crate) fn trusted() -> (Authority, Leaf) {
    let authority = Authority::new("hosted");
    let leaf = authority.issue(&[HOST]);
    (authority, leaf)
}

/// A provider at a port of this host whose authority is that of the file `ca.crt`; `fields` are further lines of its spec.
pub(crate) fn provider(name: &str, port: u16, fields: &str) -> String {
    provider_at(name, &format!("https://{HOST}:{port}/v1"), fields)
}

/// A provider at an address.
pub(crate) fn provider_at(name: &str, url: &str, fields: &str) -> String {
    let trust = if fields.contains("tls:") { "" } else { "  tls: { caFile: ../ca.crt }\n" };
    // A handshake on a busy machine takes its time.
    let timeouts = if fields.contains("timeouts:") { "" } else { "  timeouts: { connect: 1m, firstByte: 10m }\n" };
    let auth = if fields.contains("auth:") { "" } else { "  auth: { bearer: { fromEnv: HOSTED_TOKEN } }\n" };
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\nmetadata: {{ name: {name}, namespace: default }}\nspec:\n  \
         type: OpenAI\n  baseURL: {url}\n{trust}{timeouts}{auth}  models: [{{ name: {ALIAS}, upstreamName: {MODEL} }}]\n{fields}---\n"
    )
}

/// A pool of these providers in their order, used in that order.
pub(crate) fn providers_only(names: &[&str]) -> String {
    let destinations: String =
        names.iter().map(|name| format!("    - {{ kind: InferenceProvider, name: {name} }}\n")).collect();
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\nmetadata: {{ name: pool, namespace: default }}\nspec:\n  \
         policyRef: [{{ name: hosted }}]\n  destinations:\n{destinations}---\n\
         apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: hosted, namespace: default }}\nspec:\n  \
         rules: [{{ name: out, route: {{ select: [{{ type: External }}] }} }}]\n---\n"
    )
}

/// A set-up whose `ca.crt` is this authority, and whose credential is [`TOKEN`].
pub(crate) fn setup(resources: String, authority: &Authority) -> Setup {
    let mut setup = Setup::new(resources);
    setup.files.push(("ca.crt".to_owned(), authority.pem()));
    setup.environment.push(("HOSTED_TOKEN".to_owned(), TOKEN.to_owned()));
    setup
}

/// A gateway in front of one provider.
pub(crate) fn in_front_of(driver: Driver, engine: &Engine, authority: &Authority, fields: &str) -> Gateway {
    let resources = provider("hosted", engine.addr().port(), fields) + &providers_only(&["hosted"]);
    setup(resources, authority).start(driver)
}
