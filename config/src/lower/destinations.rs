//! Worker sets and providers.

use std::collections::BTreeMap;

use crds::provider::{InferenceProviderSpec, Limits, ProviderType};
use crds::secret::SecretValue;
use crds::worker_set::InferenceWorkerSetSpec;
use policy::{Code, Diagnostic};

use super::Checked;
use crate::limits::METRICS_INTERVAL;
use crate::node::Path;
use crate::secret::{Auth, Credential, Lookup, SecretSource};
use crate::snapshot::{
    Authorities, BaseUrl, Cost, GpuCost, KvEvents, Metrics, ModelKind, Provider, ProviderApi, ProviderTimeouts,
    ProviderTls, RateLimits, ServedModel, StaticEndpoint, Tls, Tokenizer, WorkerSet, WorkerSetLimits,
};
use crate::url::{check_host, parse_base_url};

pub(super) fn worker_set(
    c: &Checked,
    spec: &InferenceWorkerSetSpec,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> WorkerSet {
    let model_path = Path::spec().key("model");
    let mut models = vec![ServedModel {
        names: names(&spec.model.name, &spec.model.aliases),
        upstream_name: spec.model.served_name.clone().unwrap_or_else(|| spec.model.name.clone()),
        context_window: spec.model.context_window,
        cost: None,
        kind: ModelKind::Base,
    }];
    let mut paths = vec![model_path];
    for (i, adapter) in spec.adapters.iter().enumerate() {
        models.push(ServedModel {
            names: names(&adapter.name, &adapter.aliases),
            upstream_name: adapter.name.clone(),
            context_window: spec.model.context_window,
            cost: None,
            kind: ModelKind::Adapter,
        });
        paths.push(Path::spec().key("adapters").index(i));
    }
    unique_names(c, &models, &paths, findings);
    let (low, high) = METRICS_INTERVAL;
    let interval = spec.metrics.interval.0;
    if interval < low || interval > high {
        let message = format!("the interval {} is not between {low:?} and {high:?}", spec.metrics.interval);
        findings.push(c.finding(Code::OutOfRange, &Path::spec().key("metrics").key("interval"), message));
    }
    let labels = spec.selector.as_ref().map(|s| s.match_labels.clone()).unwrap_or_default();
    WorkerSet {
        id: c.id.clone(),
        models,
        endpoints: endpoints(c, spec, findings),
        selector: labels.into_iter().collect(),
        port: spec.port,
        metrics: Metrics { path: spec.metrics.path.clone(), interval },
        kv_events: spec.kv_events.as_ref().map(|k| KvEvents {
            port: k.port,
            topic: k.topic.clone(),
            replay_port: k.replay_port,
            ranks: k.data_parallel_ranks,
            // Its format was checked with the schema.
            listen: k.listen.as_deref().and_then(|listen| listen.parse().ok()),
        }),
        tokenizer: spec.tokenizer.as_ref().map(|written| tokenizer(c, written, lookup, findings)),
        limits: WorkerSetLimits { in_flight_per_endpoint_max: spec.limits.max_in_flight_per_endpoint },
        auth: spec.auth.as_ref().and_then(|a| auth(c, a, lookup, findings)),
        gpu_cost: spec.cost.as_ref().map(|cost| GpuCost {
            per_second: cost.per_gpu_second * f64::from(cost.gpus_per_endpoint),
            currency: cost.currency.clone(),
        }),
    }
}

/// Files of a tokenizer; one that is not there is a warning, and the worker set's prompts are estimated by bytes.
fn tokenizer(
    c: &Checked,
    written: &crds::worker_set::Tokenizer,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Tokenizer {
    let named = [("file", Some(&written.file)), ("chatTemplateFile", written.chat_template_file.as_ref())];
    for (key, file) in named.into_iter().filter_map(|(key, file)| Some((key, c.beside(file?)))) {
        if let Err(reason) = std::fs::metadata(&file)
            && lookup.reports_missing()
        {
            let path = Path::spec().key("tokenizer").key(key);
            let message = format!("{}: {reason}; tokens are estimated from bytes", file.display());
            findings.push(c.finding(Code::TokenizerMissing, &path, message));
        }
    }
    Tokenizer {
        file: c.beside(&written.file),
        chat_template_file: written.chat_template_file.as_ref().map(|file| c.beside(file)),
    }
}

fn endpoints(c: &Checked, spec: &InferenceWorkerSetSpec, findings: &mut Vec<Diagnostic>) -> Vec<StaticEndpoint> {
    let mut seen: BTreeMap<StaticEndpoint, usize> = BTreeMap::new();
    let mut list = Vec::new();
    for (i, written) in spec.endpoints.iter().flatten().enumerate() {
        let path = Path::spec().key("endpoints").index(i).key("address");
        let bare = written.address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(&written.address);
        let endpoint = StaticEndpoint { host: bare.to_ascii_lowercase(), port: written.port.unwrap_or(spec.port) };
        if let Some(first) = seen.insert(endpoint.clone(), i) {
            let message = format!("the endpoint {endpoint} is here twice; the first is spec.endpoints[{first}]");
            findings.push(c.finding(Code::DuplicateName, &path, message));
        }
        list.push(endpoint);
    }
    list
}

pub(super) fn provider(
    c: &Checked,
    spec: &InferenceProviderSpec,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Option<Provider> {
    let models: Vec<ServedModel> = spec
        .models
        .iter()
        .map(|m| ServedModel {
            names: names(&m.name, &m.aliases),
            upstream_name: m.upstream_name.clone().unwrap_or_else(|| m.name.clone()),
            context_window: m.context_window,
            cost: m.cost.as_ref().map(|cost| Cost {
                input_per_million: cost.input_per_million,
                output_per_million: cost.output_per_million,
                currency: cost.currency.clone(),
            }),
            kind: ModelKind::Base,
        })
        .collect();
    let paths: Vec<Path> = (0..models.len()).map(|i| Path::spec().key("models").index(i)).collect();
    unique_names(c, &models, &paths, findings);
    // The schema check has parsed it before.
    let base_url = parse_base_url(&spec.base_url).ok()?;
    let auth = spec.auth.as_ref().and_then(|a| auth(c, a, lookup, findings));
    if auth.is_some() && base_url.tls == Tls::No && !is_loopback(&base_url) {
        let message = format!("the credential is sent to {} without encryption", base_url.host);
        let finding = c.finding(Code::PlainTextCredential, &Path::spec().key("baseURL"), message);
        findings.push(finding.expected("`https://...`"));
    }
    aws(c, spec, &base_url, findings);
    Some(Provider {
        id: c.id.clone(),
        api: match spec.api {
            ProviderType::OpenAI => ProviderApi::OpenAi,
            ProviderType::Bedrock => ProviderApi::Bedrock,
        },
        tls: provider_tls(c, spec, &base_url, lookup, findings),
        base_url,
        auth,
        models,
        limits: rate_limits(&spec.limits),
        timeouts: ProviderTimeouts {
            connect: spec.timeouts.connect.0,
            first_byte: spec.timeouts.first_byte.0,
            idle: spec.timeouts.idle.0,
            total: spec.timeouts.total.map(|t| t.0),
        },
    })
}

/// Credentials for which AWS refuses every request.
fn aws(c: &Checked, spec: &InferenceProviderSpec, base_url: &BaseUrl, findings: &mut Vec<Diagnostic>) {
    let mut refused = |path: &Path, message: String, expected: String| {
        findings.push(c.finding(Code::CredentialRefused, path, message).expected(expected));
    };
    let path = Path::spec().key("auth");
    let keys = || String::from("`awsSigV4`, or `bearer` with an API key of Bedrock");
    match (spec.api, &spec.auth) {
        // What listens here may sign.
        (ProviderType::Bedrock, None) if is_loopback(base_url) => {}
        (ProviderType::Bedrock, None) => {
            let message = String::from("there is no `auth`, and Bedrock refuses every request without a credential");
            refused(&Path::spec().key("type"), message, keys());
        }
        (ProviderType::Bedrock, Some(auth)) => {
            if let Some(header) = &auth.api_key_header {
                let message = format!("Bedrock takes no key in a header `{}`", header.name);
                refused(&path.key("apiKeyHeader"), message, keys());
            }
        }
        (ProviderType::OpenAI, _) => {}
    }
    if let Some(aws) = spec.auth.as_ref().and_then(|auth| auth.aws_sig_v4.as_ref())
        && let Some(there) = aws_region(&base_url.host)
        && there != aws.region
    {
        let message =
            format!("{} is in another region than `{}`: it refuses every signature", base_url.host, aws.region);
        refused(&path.key("awsSigV4").key("region"), message, format!("`{there}`"));
    }
}

/// The region in the name of an AWS endpoint: `bedrock-runtime.eu-central-1.amazonaws.com`, or one of a VPC.
fn aws_region(host: &str) -> Option<&str> {
    const DOMAINS: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];
    let name = DOMAINS.iter().find_map(|domain| host.strip_suffix(domain))?;
    name.rsplit('.').find(|label| {
        let mut parts = label.rsplit('-');
        let number = parts.next().is_some_and(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        let words: Vec<&str> = parts.collect();
        let word = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase());
        number && words.len() >= 2 && words.iter().all(word)
    })
}

fn provider_tls(
    c: &Checked,
    spec: &InferenceProviderSpec,
    base_url: &BaseUrl,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> ProviderTls {
    let path = Path::spec().key("tls");
    let written = spec.tls.server_name.as_deref();
    if let Some(Err(reason)) = written.map(check_host) {
        findings
            .push(c.finding(Code::BadFormat, &path.key("serverName"), reason).expected("a DNS name or an IP address"));
    }
    let authorities = match &spec.tls.ca_file {
        None => Authorities::System,
        Some(file) => {
            let file = c.beside(file);
            let pem = lookup.find_file(&file);
            if let Err(reason) = &pem
                && lookup.reports_missing()
            {
                let message = format!("{reason}; {NOT_READY}");
                findings.push(c.finding(Code::SecretMissing, &path.key("caFile"), message));
            }
            Authorities::File { file, pem }
        }
    };
    ProviderTls { authorities, server_name: written.unwrap_or(&base_url.host).to_ascii_lowercase() }
}

pub(super) fn rate_limits(limits: &Limits) -> RateLimits {
    RateLimits {
        requests_per_minute: limits.requests_per_minute,
        tokens_per_minute: limits.tokens_per_minute,
        in_flight_max: limits.max_in_flight,
    }
}

pub(super) fn is_loopback(url: &BaseUrl) -> bool {
    url.host == "localhost" || url.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn names(name: &str, aliases: &[String]) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(aliases.iter().cloned()).collect()
}

/// A name must mean one model of a destination.
fn unique_names(c: &Checked, models: &[ServedModel], paths: &[Path], findings: &mut Vec<Diagnostic>) {
    let mut seen: BTreeMap<&str, Path> = BTreeMap::new();
    for (model, path) in models.iter().zip(paths) {
        for (i, name) in model.names.iter().enumerate() {
            let here = if i == 0 { path.key("name") } else { path.key("aliases").index(i - 1) };
            if let Some(first) = seen.get(name.as_str()) {
                let message = format!("the name `{name}` is taken by {first}");
                findings.push(c.finding(Code::DuplicateName, &here, message));
            } else {
                seen.insert(name, here);
            }
        }
    }
}

/// Where a secret is said to be, as the schema makes sure: exactly one place.
fn source(c: &Checked, written: &SecretValue) -> Option<SecretSource> {
    let env = written.from_env.as_ref().map(|name| SecretSource::Env(name.clone()));
    let file = || written.from_file.as_ref().map(|f| SecretSource::File(c.beside(f)));
    let reference =
        || written.secret_ref.as_ref().map(|r| SecretSource::SecretRef { name: r.name.clone(), key: r.key.clone() });
    env.or_else(file).or_else(reference)
}

/// Finds a secret; one that is not there is a warning that says what is `missed` for it.
pub(super) fn credential(
    c: &Checked,
    path: &Path,
    written: &SecretValue,
    missed: &str,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Option<Credential> {
    let source = source(c, written)?;
    let value = lookup.find(&c.id.namespace, &source);
    if let Err(reason) = &value
        && lookup.reports_missing()
    {
        findings.push(c.finding(Code::SecretMissing, path, format!("{reason}; {missed}")));
    }
    Some(Credential { source, value })
}

/// What a credential is missed for, of a destination.
const NOT_READY: &str = "the destination is not ready";

fn auth(
    c: &Checked,
    written: &crds::secret::Auth,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Option<Auth> {
    let path = Path::spec().key("auth");
    if let Some(bearer) = &written.bearer {
        return credential(c, &path.key("bearer"), bearer, NOT_READY, lookup, findings).map(Auth::Bearer);
    }
    if let Some(header) = &written.api_key_header {
        let path = path.key("apiKeyHeader").key("value");
        let key = credential(c, &path, &header.value, NOT_READY, lookup, findings)?;
        return Some(Auth::ApiKeyHeader { header: header.name.to_ascii_lowercase(), key });
    }
    let aws = written.aws_sig_v4.as_ref()?;
    let path = path.key("awsSigV4");
    Some(Auth::AwsSigV4 {
        region: aws.region.clone(),
        service: aws.service.clone(),
        access_key_id: credential(c, &path.key("accessKeyId"), &aws.access_key_id, NOT_READY, lookup, findings)?,
        secret_access_key: credential(
            c,
            &path.key("secretAccessKey"),
            &aws.secret_access_key,
            NOT_READY,
            lookup,
            findings,
        )?,
        session_token: match &aws.session_token {
            Some(token) => Some(credential(c, &path.key("sessionToken"), token, NOT_READY, lookup, findings)?),
            None => None,
        },
    })
}
