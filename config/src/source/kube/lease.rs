//! Which of several gateways writes statuses: the one that holds a Lease.
//!
//! As client-go's leader election: a lease that has not changed for its duration by one's own clock may be taken, so clocks
//! need not agree; a write goes against the version that was read, so that one of two wins. For a moment after a pause of a
//! process two may write: both write the same, since a status follows from the objects. Who leaves gives the lease back, and
//! the next one need not wait for it to run out.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::watch::Failure;
use crate::limits::{LEASE_EVERY, LEASE_LASTS};
use crate::source::cluster::Leave;

/// Whether this process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Writer,
    Reader,
}

/// Name of the lease.
pub(super) const NAME: &str = "kinference-status";

/// What was last read of the lease, and when that was new.
#[derive(Debug)]
struct Observed {
    spec: LeaseSpec,
    since: Instant,
}

/// What to do about a lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Write it in one's own name.
    Take,
    /// Someone else holds it.
    Leave,
}

fn step(observed: &Observed, identity: &str, now: Instant) -> Step {
    let holder = observed.spec.holder_identity.as_deref().unwrap_or_default();
    let lasts = observed.spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
    let lasts = lasts.map_or(LEASE_LASTS, Duration::from_secs);
    let free = holder.is_empty() || holder == identity || now.duration_since(observed.since) > lasts;
    if free { Step::Take } else { Step::Leave }
}

/// Times that giving the lease back is tried: a renewal of one's own may still be on its way.
const GIVE_BACK_TRIES: u32 = 3;

/// Takes part in the election until nobody listens, or until told to leave.
pub(super) async fn run(client: Client, namespace: String, identity: String, role: watch::Sender<Role>, leave: Leave) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let told = tokio::select! {
        () = hold(&api, &identity, &role) => return,
        told = leave => told,
    };
    // Whoever could have said so has ended without a word.
    let Ok(answer) = told else { return };
    role.send_replace(Role::Reader);
    // Also where it is not known to be held: it may just have been taken. One that cannot be given back runs out by itself.
    let _ = timeout(LEASE_EVERY, give_back(&api, &identity)).await;
    // Whoever asked may have gone.
    let _ = answer.send(());
}

/// Takes the lease when it is free, and renews it, until nobody listens.
async fn hold(api: &Api<Lease>, identity: &str, role: &watch::Sender<Role>) {
    let mut observed: Option<Observed> = None;
    let mut renewed = Instant::now();
    // Each turn is one look at the lease.
    while !role.is_closed() {
        let turn = timeout(LEASE_EVERY, turn(api, identity, &mut observed)).await;
        let now = match turn {
            Ok(Ok(held)) => {
                renewed = Instant::now();
                held
            }
            // What is held stays so for as long as others must think so.
            Ok(Err(_)) | Err(_) if renewed.elapsed() < LEASE_LASTS * 2 / 3 => *role.borrow(),
            Ok(Err(_)) | Err(_) => Role::Reader,
        };
        role.send_if_modified(|role| std::mem::replace(role, now) != now);
        sleep(LEASE_EVERY.mul_f64(0.8 + 0.2 * super::backoff::fraction())).await;
    }
}

async fn turn(api: &Api<Lease>, identity: &str, observed: &mut Option<Observed>) -> Result<Role, Failure> {
    let failure = |error: kube::Error| Failure::from(&error);
    let Some(mut lease) = api.get_opt(NAME).await.map_err(failure)? else {
        let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(held(None, identity)) };
        return written(api.create(&PostParams::default(), &lease).await);
    };
    let spec = lease.spec.take().unwrap_or_default();
    if observed.as_ref().is_none_or(|observed| observed.spec != spec) {
        *observed = Some(Observed { spec: spec.clone(), since: Instant::now() });
    }
    let step = observed.as_ref().map_or(Step::Leave, |observed| step(observed, identity, Instant::now()));
    match step {
        Step::Leave => Ok(Role::Reader),
        Step::Take => {
            lease.spec = Some(held(Some(&spec), identity));
            written(api.replace(NAME, &PostParams::default(), &lease).await)
        }
    }
}

/// Makes the lease free, where it is one's own.
async fn give_back(api: &Api<Lease>, identity: &str) -> kube::Result<()> {
    for _ in 0..GIVE_BACK_TRIES {
        let Some(mut lease) = api.get_opt(NAME).await? else { return Ok(()) };
        let spec = lease.spec.take().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(identity) {
            return Ok(());
        }
        lease.spec = Some(free(spec));
        match api.replace(NAME, &PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => return result.map(|_| ()),
        }
    }
    Ok(())
}

/// The lease in nobody's name: as client-go leaves it, with a duration of a second, since none is not allowed.
fn free(before: LeaseSpec) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..before
    }
}

/// Another that was faster is no failure.
fn written(result: kube::Result<Lease>) -> Result<Role, Failure> {
    match result {
        Ok(_) => Ok(Role::Writer),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Role::Reader),
        Err(error) => Err(Failure::from(&error)),
    }
}

/// The lease in one's own name.
fn held(before: Option<&LeaseSpec>, identity: &str) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let mine = before.is_some_and(|before| before.holder_identity.as_deref() == Some(identity));
    let transitions = before.and_then(|before| before.lease_transitions).unwrap_or(0);
    LeaseSpec {
        acquire_time: if mine { before.and_then(|before| before.acquire_time.clone()) } else { Some(now.clone()) },
        renew_time: Some(now),
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_LASTS.as_secs()).ok(),
        lease_transitions: Some(if mine || before.is_none() { transitions } else { transitions.saturating_add(1) }),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_ones_own_or_has_not_moved_for_its_time() {
        let since = Instant::now();
        let observed = |holder: &str| Observed {
            spec: LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(10),
                ..LeaseSpec::default()
            },
            since,
        };
        let after = |seconds| since + Duration::from_secs(seconds);
        assert_eq!(step(&observed("other"), "me", after(9)), Step::Leave);
        assert_eq!(step(&observed("other"), "me", after(11)), Step::Take);
        assert_eq!(step(&observed(""), "me", after(0)), Step::Take);
        assert_eq!(step(&observed("me"), "me", after(0)), Step::Take);
        let left = Observed { spec: free(observed("other").spec), since };
        assert_eq!(step(&left, "me", after(0)), Step::Take);
    }

    #[test]
    fn a_change_of_holder_is_counted() {
        let first = held(None, "a");
        let renewed = held(Some(&first), "a");
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(0), &first.acquire_time));
        assert_eq!(held(Some(&renewed), "b").lease_transitions, Some(1));
    }
}
