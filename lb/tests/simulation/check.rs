//! What must hold of a seed, whatever happened: each request has one answer or a reason for none, nobody got another's, no
//! engine was asked twice for what it may have done, and the access log says the same.

use std::collections::HashMap;

use serde_json::Value;

use crate::client::{Ending, Reply, Seen, Sent};
use crate::content::{Id, shown_body};
use crate::engine::{Attempt, Book};
use crate::script::{Act, Ask, Connection, ENGINES, How, Leave, Order, Request, Script, Stop, What};

/// Failures after which the control thread takes an endpoint out.
const FAILURES_TO_EJECT: usize = 5;

/// A request and everything that is known of it.
struct Case<'a> {
    script: &'a Script,
    connection: &'a Connection,
    request: &'a Request,
    id: Id,
    attempts: Vec<Attempt>,
    /// Failed attempts of the whole seed.
    failures: usize,
}

/// What the access log may say.
struct Told {
    outcomes: &'static [&'static str],
    status: u16,
}

/// What is wrong with a seed, each finding in a line of its own.
pub(crate) fn check(
    script: &Script,
    seen: &[Vec<Seen>],
    book: &Book,
    log: &HashMap<String, Vec<Value>>,
) -> Vec<String> {
    let mut wrong = book.wrong();
    let failures = book.failures();
    for (number, connection) in script.connections.iter().enumerate() {
        for (at, request) in connection.requests.iter().enumerate() {
            let id = Id { seed: script.seed, connection: number, request: at };
            let case = Case { script, connection, request, id, attempts: book.attempts(id), failures };
            let seen = &seen[number][at];
            let lines = log.get(&id.to_string()).map(Vec::as_slice).unwrap_or_default();
            let checked = case
                .attempts_are_in_order()
                .and_then(|()| case.seen(seen))
                .and_then(|told| case.log(seen, told, lines));
            if let Err(what) = checked {
                let seen = format!("{seen:?}").chars().take(600).collect::<String>();
                wrong.push(format!(
                    "{id}: {what}\n    seen: {seen}\n    attempts: {:?}\n    log: {lines:?}",
                    case.attempts
                ));
            }
        }
    }
    wrong
}

/// Answers that come with an id of the gateway's own, since none could be read.
pub(crate) fn is_nameless(ask: Ask) -> bool {
    matches!(ask, Ask::BadHead | Ask::StalledHead)
}

impl Case<'_> {
    /// Only what nobody has begun to answer is given to another.
    fn attempts_are_in_order(&self) -> Result<(), String> {
        let Some((_, earlier)) = self.attempts.split_last() else { return Ok(()) };
        match earlier.iter().find(|attempt| !attempt.act.may_be_tried_elsewhere()) {
            None => Ok(()),
            Some(attempt) => Err(format!("tried again after {:?}", attempt.act)),
        }
    }

    fn seen(&self, seen: &Seen) -> Result<Option<Told>, String> {
        match seen {
            Seen::Unasked if self.attempts.is_empty() => Ok(None),
            Seen::Unasked => Err(String::from("an engine got it though its connection had ended")),
            Seen::Left(Sent::PartOfHead | Sent::Head) if !self.attempts.is_empty() => {
                Err(String::from("an engine got a part of it"))
            }
            Seen::Left(_) => Ok(None),
            Seen::Whole(reply) if self.request.ask.is_routed() => self.answered(reply).map(Some),
            Seen::Whole(reply) => self.refused(reply).map(Some),
            Seen::Cut(reply, ending) => self.cut_off(reply, *ending).map(Some),
            Seen::Nothing(ending) => Err(format!("no answer: {ending:?}")),
            Seen::Odd(what) => Err(what.clone()),
        }
    }

    /// What no engine is asked for.
    fn refused(&self, reply: &Reply) -> Result<Told, String> {
        let (status, outcomes): (u16, &[&str]) = match self.request.ask {
            Ask::Models => (200, &["ok"]),
            Ask::UnknownModel => (404, &["model_not_found"]),
            Ask::BrokenJson | Ask::BadHead | Ask::BrokenChunks => (400, &["bad_request"]),
            Ask::TooLarge => (413, &["bad_request"]),
            Ask::StalledHead | Ask::StalledBody => (408, &["bad_request"]),
            Ask::Document(_) | Ask::Stream(..) | Ask::Opaque => return Err(String::from("it was to be routed")),
        };
        if !self.attempts.is_empty() {
            return Err(String::from("an engine got it"));
        }
        if reply.status != status || (status >= 400 && our_code(&reply.body).is_none()) {
            return Err(format!("status {status} and an error object were due"));
        }
        Ok(Told { outcomes, status })
    }

    /// A whole answer to what an engine is asked for.
    fn answered(&self, reply: &Reply) -> Result<Told, String> {
        if let Some(code) = our_code(&reply.body).filter(|_| reply.status >= 400) {
            return self.failed(reply.status, &code);
        }
        let status = reply.status;
        let Some(last) = self.attempts.last() else { return Err(String::from("no engine has answered it")) };
        if status >= 400 {
            let answers = (0..).zip(&self.attempts);
            let mut same = answers.filter(|(_, attempt)| status_of(attempt.act) == Some(status));
            let whole = same.any(|(number, attempt)| reply.body == self.shown(number, attempt.act));
            return match whole {
                true => Ok(Told { outcomes: &["upstream_status"], status }),
                false => Err(String::from("no engine has said that")),
            };
        }
        let whole = self.shown(self.attempts.len() - 1, last.act);
        match last.act {
            Act::Answer(_) if reply.body == whole => Ok(Told { outcomes: &["ok"], status }),
            Act::ErrorEvent(_) if reply.body == whole => Ok(Told { outcomes: &["error_event"], status }),
            Act::Cut(..) if broken_off(&reply.body, &whole).is_some_and(|code| codes_of(last.act).contains(&code)) => {
                Ok(Told { outcomes: &["truncated"], status })
            }
            // Without a length nobody can tell.
            Act::Cut(..) if !reply.tells_length() && whole.starts_with(&reply.body) => {
                Ok(Told { outcomes: &["truncated"], status })
            }
            Act::Answer(_)
            | Act::ErrorEvent(_)
            | Act::Cut(..)
            | Act::Status(_)
            | Act::Early
            | Act::Vanish(_)
            | Act::VanishUnread(_)
            | Act::Garbage
            | Act::HalfHead
            | Act::Silent => Err(format!("this was due: {:?}", whole.chars().take(300).collect::<String>())),
        }
    }

    /// An error object of the gateway instead of an engine's answer.
    fn failed(&self, status: u16, code: &str) -> Result<Told, String> {
        let happened = |what: fn(&What) -> bool| self.script.events.iter().any(|event| what(&event.what));
        if code == "no_ready_endpoint" {
            // All that are left may be out.
            return match self.failures >= FAILURES_TO_EJECT || self.script.harms_engines() {
                true => Ok(Told { outcomes: &["no_ready_endpoint"], status }),
                false => Err(String::from("there are endpoints")),
            };
        }
        let last = self.attempts.last().map(|attempt| attempt.act);
        let refused = happened(|what| matches!(what, What::Refuse(_))) && code == "upstream_unreachable";
        // A reset may come before the connection is known to be there.
        let barred =
            happened(|what| matches!(what, What::Bar(_))) && ["upstream_reset", "upstream_unreachable"].contains(&code);
        if !last.map(codes_of).unwrap_or_default().contains(&code) && !refused && !barred {
            return Err(format!("{code} has no reason"));
        }
        let due = if code == "upstream_timeout" { 504 } else { 502 };
        if status != due {
            return Err(format!("{code} comes with {due}"));
        }
        let undisturbed = self.script.events.is_empty() && self.failures < FAILURES_TO_EJECT;
        let begun = matches!(last, Some(Act::Cut(..)));
        if undisturbed && !begun && last.is_some_and(Act::may_be_tried_elsewhere) && self.engines_tried() < ENGINES {
            return Err(format!("only {} engines were tried", self.engines_tried()));
        }
        Ok(Told { outcomes: &["upstream_error", "truncated"], status })
    }

    fn engines_tried(&self) -> usize {
        (0..ENGINES).filter(|engine| self.attempts.iter().any(|attempt| attempt.engine == *engine)).count()
    }

    /// An answer that ended before its end: only where there is no other way to tell the client.
    fn cut_off(&self, reply: &Reply, ending: Ending) -> Result<Told, String> {
        let Some(last) = self.attempts.last() else { return Err(String::from("no engine has answered it")) };
        let whole = self.shown(self.attempts.len() - 1, last.act);
        let has_no_room_for_events = self.request.ask == Ask::Opaque
            || (reply.header("content-length").is_some() && matches!(self.request.ask, Ask::Stream(..)));
        let cut = matches!(last.act, Act::Cut(..)) && whole.starts_with(&reply.body);
        match cut && has_no_room_for_events && ending != Ending::Never {
            true => Ok(Told { outcomes: &["truncated"], status: reply.status }),
            false => Err(String::from("it was cut off without a reason")),
        }
    }

    fn shown(&self, attempt: usize, act: Act) -> String {
        shown_body(self.id, self.request.ask, attempt, act)
    }

    /// One line for each request whose head was read, and it says what the client saw.
    fn log(&self, seen: &Seen, told: Option<Told>, lines: &[Value]) -> Result<(), String> {
        let lines_due = match seen {
            Seen::Whole(_) | Seen::Cut(..) if is_nameless(self.request.ask) => 0..=0,
            Seen::Whole(_) | Seen::Cut(..) => 1..=1,
            Seen::Unasked | Seen::Left(Sent::PartOfHead) | Seen::Nothing(_) | Seen::Odd(_) => 0..=0,
            Seen::Left(Sent::Head | Sent::Whole) => {
                let reset = match self.request.leave {
                    Leave::WithinRequest(_, how) | Leave::AfterRequest(how) => how == How::Reset,
                    Leave::Never | Leave::WithinAnswer(..) => false,
                };
                // What a reset takes along was perhaps not read, nor what waited for its turn.
                if reset || self.connection.order == Order::Pipelined { 0..=1 } else { 1..=1 }
            }
        };
        if !lines_due.contains(&lines.len()) {
            return Err(format!("{} lines in the access log, {lines_due:?} are due", lines.len()));
        }
        let (Some(line), Some(told)) = (lines.first(), told) else { return Ok(()) };
        let (outcome, status) = (line["outcome"].as_str().unwrap_or_default(), line["status"].as_u64());
        if !told.outcomes.contains(&outcome) || status != Some(u64::from(told.status)) {
            return Err(format!(
                "the access log says {outcome} {status:?}, the client saw {:?} {}",
                told.outcomes, told.status
            ));
        }
        if outcome == "ok" && self.request.ask.is_routed() && !line["endpoint"].is_string() {
            return Err(String::from("the access log names no endpoint"));
        }
        Ok(())
    }
}

/// The code of an error object of the gateway; `None` for any other body.
fn our_code(body: &str) -> Option<String> {
    let json: Value = serde_json::from_str(body).ok()?;
    let error = json.get("error")?;
    error["message"].as_str().filter(|message| !message.is_empty())?;
    let code = error["code"].as_str()?;
    (code != "engine_says").then(|| code.to_owned())
}

/// The code of the error event that ends `body`, when what stands before it is the beginning of `whole`.
fn broken_off(body: &str, whole: &str) -> Option<&'static str> {
    let at = body.rfind("data: {\"error\"")?;
    let (before, event) = body.split_at(at);
    // An event that was cut off is ended first.
    let is_beginning =
        whole.starts_with(before) || before.strip_suffix("\n\n").is_some_and(|before| whole.starts_with(before));
    let json: Value = serde_json::from_str(event.strip_prefix("data: ")?.strip_suffix("\n\n")?).ok()?;
    let code = json["error"]["code"].as_str()?;
    let known =
        ["upstream_reset", "upstream_timeout", "upstream_bad_answer"].into_iter().find(|known| *known == code)?;
    is_beginning.then_some(known)
}

/// The status that an act says.
fn status_of(act: Act) -> Option<u16> {
    match act {
        Act::Status(code) => Some(code),
        Act::Early => Some(413),
        Act::Answer(_) | Act::ErrorEvent(_) | Act::Cut(..) => Some(200),
        Act::Vanish(_) | Act::VanishUnread(_) | Act::Garbage | Act::HalfHead | Act::Silent => None,
    }
}

/// What the gateway may say of an act that is no answer.
fn codes_of(act: Act) -> &'static [&'static str] {
    match act {
        // Perhaps only a part of the head has come.
        Act::Cut(_, _, Stop::End(How::Reset)) if act.may_be_tried_elsewhere() => {
            &["upstream_reset", "upstream_bad_answer"]
        }
        Act::Vanish(_) | Act::VanishUnread(_) | Act::Cut(_, _, Stop::End(_)) => &["upstream_reset"],
        Act::Garbage | Act::HalfHead | Act::Cut(_, _, Stop::BadChunk) => &["upstream_bad_answer"],
        Act::Silent | Act::Cut(_, _, Stop::Silence) => &["upstream_timeout"],
        Act::Answer(_) | Act::Status(_) | Act::Early | Act::ErrorEvent(_) => &[],
    }
}
