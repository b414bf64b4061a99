//! Evaluation allocates nothing: neither the match of a rule nor the decision, once the scratch memory has its size.
#![allow(unsafe_code, reason = "counting allocations needs an allocator; nothing of it is in the product")]

mod fleet;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use policy::{Decision, HeaderMap, Program, Request, Scratch, decide};

/// The system's allocator, which counts what the thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator unchanged; the count is a thread-local number without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(program: &Program) -> u64 {
    let candidates = fleet::candidates();
    let headers = HeaderMap(vec![("x-team".into(), "search".into())]);
    let tags = ["code", "tools"];
    let mut scratch = Scratch::new();
    let mut evaluate = |seed: u64| {
        let request = Request {
            tags: &tags,
            headers: &headers,
            prompt_tokens: 900.0,
            conversation: Some(seed),
            ..Request::chat("qwen-3.6", "alice")
        };
        let rule = program.match_rule(&request);
        assert_eq!(program.rule(rule).name, "last");
        assert_eq!(program.match_shadow(&request, rule), None);
        let decision = decide(program, rule, &request, &candidates, seed, &mut scratch);
        assert!(matches!(decision, Decision::Chosen { .. }));
    };
    evaluate(0);
    let before = ALLOCATIONS.get();
    (1..100).for_each(&mut evaluate);
    ALLOCATIONS.get() - before
}

#[test]
fn a_decision_over_50_rules_and_100_candidates_allocates_nothing() {
    assert_eq!(allocations_of(&fleet::program()), 0);
}

#[test]
fn a_split_allocates_nothing() {
    assert_eq!(allocations_of(&fleet::split_program()), 0);
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1_u8]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
