//! The file source on real files: each change is seen once, and a broken set never replaces a good one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Snapshot;
use config::source::{FileChanges, FileWatch, WatchSettings, read_set, watch};
use policy::{Code, Diagnostic};

/// Longer than any change may take; nothing waits that long when all is well.
const PATIENCE: Duration = Duration::from_secs(180);

const HOUR: Duration = Duration::from_secs(3600);

/// Without a poll, so that only events can be what wakes the reader.
const EVENTS_ONLY: WatchSettings = WatchSettings { debounce: Duration::from_millis(40), look: HOUR, poll: HOUR };

/// With a poll so quick that events do not matter.
const POLL_ONLY: WatchSettings =
    WatchSettings { debounce: Duration::from_millis(1), look: HOUR, poll: Duration::from_millis(20) };

/// Reads only when metadata differ (or an event comes).
const LOOK_ONLY: WatchSettings =
    WatchSettings { debounce: Duration::from_millis(1), look: Duration::from_millis(20), poll: HOUR };

fn worker_set(name: &str) -> String {
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceWorkerSet\nmetadata: {{ name: {name} }}\nspec:\n  \
         model: {{ name: {name} }}\n  endpoints: [{{ address: 127.0.0.1 }}]\n"
    )
}

/// Writes a file in one step, so that no reader sees half of it.
fn put(path: &Path, text: &str) {
    let hidden = path.with_file_name(".being-written");
    fs::write(&hidden, text).expect("writes");
    fs::rename(&hidden, path).expect("renames");
}

fn names(set: &Result<Snapshot, Vec<Diagnostic>>) -> Vec<&str> {
    set.as_ref().expect("the set is good").worker_sets.iter().map(|w| w.id.name.as_str()).collect()
}

async fn next(watch: &mut FileWatch) -> Result<Snapshot, Vec<Diagnostic>> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a change within the time").expect("the watch goes on")
}

/// Nothing comes although the reader had every chance: a marker change made afterwards is the very next item.
async fn next_is(watch: &mut FileWatch, folder: &Path, marker: &str) {
    put(&folder.join(format!("zz-{marker}.yaml")), &worker_set(marker));
    let set = next(watch).await;
    assert!(names(&set).contains(&marker), "the next item shows the marker: {:?}", names(&set));
}

/// A folder as the kubelet mounts a ConfigMap.
struct ConfigMap {
    mount: PathBuf,
}

impl ConfigMap {
    fn new(mount: &Path) -> Self {
        fs::create_dir_all(mount).expect("creates");
        Self { mount: mount.to_path_buf() }
    }

    /// What kubelet's atomic writer does: a new hidden folder, a new link beside, one rename, links for new names.
    fn publish(&self, version: &str, files: &[(&str, String)]) {
        let hidden = self.mount.join(format!("..{version}"));
        fs::create_dir(&hidden).expect("creates");
        for (name, text) in files {
            fs::write(hidden.join(name), text).expect("writes");
        }
        let old = fs::read_link(self.mount.join("..data")).ok();
        symlink(format!("..{version}"), self.mount.join("..data_tmp")).expect("links");
        fs::rename(self.mount.join("..data_tmp"), self.mount.join("..data")).expect("renames");
        for (name, _) in files {
            let link = self.mount.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(format!("..data/{name}"), link).expect("links");
            }
        }
        if let Some(old) = old {
            fs::remove_dir_all(self.mount.join(old)).expect("removes");
        }
    }
}

#[tokio::test]
async fn the_swap_of_a_mounted_config_map_is_one_change() {
    let root = tempfile::tempdir().expect("a folder");
    let map = ConfigMap::new(&root.path().join("resources"));
    map.publish("1", &[("a.yaml", worker_set("one")), ("b.yaml", worker_set("two"))]);
    let mut watch = watch(vec![map.mount.clone()], EVENTS_ONLY);
    let first = next(&mut watch).await;
    assert_eq!(names(&first), ["one", "two"]);
    map.publish("2", &[("a.yaml", worker_set("three")), ("b.yaml", worker_set("four"))]);
    let second = next(&mut watch).await;
    assert_eq!(names(&second), ["four", "three"], "both files change together");
    assert_eq!(second.expect("good").generation, first.expect("good").generation + 1);
    next_is(&mut watch, &map.mount, "marker").await;
}

#[tokio::test]
async fn a_save_by_rename_and_files_added_and_removed_are_seen() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path();
    fs::write(folder.join("a.yaml"), worker_set("one")).expect("writes");
    let mut watch = watch(vec![folder.join("a.yaml"), folder.to_path_buf()], EVENTS_ONLY);
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    fs::write(folder.join(".a.yaml.swp"), worker_set("one-renamed")).expect("writes");
    fs::rename(folder.join(".a.yaml.swp"), folder.join("a.yaml")).expect("renames");
    assert_eq!(names(&next(&mut watch).await), ["one-renamed"]);
    fs::create_dir(folder.join("below")).expect("creates");
    put(&folder.join("below/b.yml"), &worker_set("two"));
    assert_eq!(names(&next(&mut watch).await), ["one-renamed", "two"]);
    fs::remove_file(folder.join("below/b.yml")).expect("removes");
    assert_eq!(names(&next(&mut watch).await), ["one-renamed"]);
}

#[tokio::test]
async fn a_broken_set_is_reported_and_a_repaired_one_comes_into_force() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("a.yaml");
    put(&file, &worker_set("one"));
    let mut watch = watch(vec![file.clone()], EVENTS_ONLY);
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    put(&file, &worker_set("one").replace("endpoints", "endpoint"));
    let findings = next(&mut watch).await.expect_err("refused");
    assert!(findings.iter().any(|f| f.code == Code::UnknownField), "{findings:?}");
    put(&file, &worker_set("two"));
    let repaired = next(&mut watch).await;
    assert_eq!(names(&repaired), ["two"]);
    assert_eq!(repaired.expect("good").generation, 2, "a refused set has no generation");
}

#[tokio::test]
async fn rewriting_the_same_content_is_no_change() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("a.yaml");
    put(&file, &worker_set("one"));
    let mut watch = watch(vec![root.path().to_path_buf()], EVENTS_ONLY);
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    put(&file, &worker_set("one"));
    next_is(&mut watch, root.path(), "marker").await;
}

#[tokio::test]
async fn a_folder_created_later_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("not/yet");
    let mut watch = watch(vec![folder.clone()], EVENTS_ONLY);
    let findings = next(&mut watch).await.expect_err("nothing is there");
    assert_eq!(findings[0].code, Code::Unreadable);
    fs::create_dir_all(&folder).expect("creates");
    let empty = next(&mut watch).await;
    if names(&empty).is_empty() {
        put(&folder.join("a.yaml"), &worker_set("one"));
    }
    assert_eq!(names(&next(&mut watch).await), ["one"]);
}

#[tokio::test]
async fn a_folder_that_disappears_does_not_empty_the_set() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("resources");
    fs::create_dir(&folder).expect("creates");
    fs::write(folder.join("a.yaml"), worker_set("one")).expect("writes");
    let mut watch = watch(vec![folder.clone()], EVENTS_ONLY);
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    fs::rename(&folder, root.path().join("elsewhere")).expect("renames");
    assert_eq!(next(&mut watch).await.expect_err("refused")[0].code, Code::Unreadable);
}

#[tokio::test]
async fn a_rotated_secret_file_is_a_change() {
    let root = tempfile::tempdir().expect("a folder");
    fs::write(root.path().join("token"), "first\n").expect("writes");
    let text = worker_set("one").replace("spec:\n", "spec:\n  auth: { bearer: { fromFile: token } }\n");
    fs::write(root.path().join("a.yaml"), text).expect("writes");
    let mut watch = watch(vec![root.path().join("a.yaml")], POLL_ONLY);
    let token = |set: Result<Snapshot, Vec<Diagnostic>>| {
        let set = set.expect("good");
        let auth = set.worker_sets[0].auth.clone().expect("configured");
        auth.credentials().next().and_then(|c| c.value.clone().ok()).map(|s| s.expose().to_owned())
    };
    assert_eq!(token(next(&mut watch).await).as_deref(), Some("first"));
    put(&root.path().join("token"), "second, longer\n");
    assert_eq!(token(next(&mut watch).await).as_deref(), Some("second, longer"));
}

#[tokio::test]
async fn a_key_and_authorities_elsewhere_are_watched_too() {
    let (root, secrets) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (key, authorities) = (secrets.path().join("key"), secrets.path().join("ca.crt"));
    fs::write(&key, "first\n").expect("writes");
    fs::write(&authorities, "one\n").expect("writes");
    let text = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\nmetadata: {{ name: p }}\nspec:\n  type: OpenAI\n  \
         baseURL: https://api.example.com/v1\n  tls: {{ caFile: {} }}\n  auth: {{ apiKeyHeader: {{ value: {{ fromFile: {} }} }} }}\n  \
         models: [{{ name: m }}]\n",
        authorities.display(),
        key.display()
    );
    fs::write(root.path().join("a.yaml"), text).expect("writes");
    let mut watch = watch(vec![root.path().to_path_buf()], EVENTS_ONLY);
    let held = |set: Result<Snapshot, Vec<Diagnostic>>| {
        let provider = set.expect("good").providers.remove(0);
        let key = provider.auth.iter().flat_map(config::Auth::credentials).find_map(|c| c.value.clone().ok());
        let pem = match provider.tls.authorities {
            config::snapshot::Authorities::File { pem, .. } => pem.expect("it is there"),
            config::snapshot::Authorities::System => panic!("a file is named"),
        };
        (key.expect("it is there").expose().to_owned(), pem.to_string())
    };
    let pair = |key: &str, pem: &str| (key.to_owned(), pem.to_owned());
    assert_eq!(held(next(&mut watch).await), pair("first", "one\n"));
    // In place, then by a rename.
    fs::write(&key, "second\n").expect("writes");
    assert_eq!(held(next(&mut watch).await), pair("second", "one\n"));
    put(&authorities, "another\n");
    assert_eq!(held(next(&mut watch).await), pair("second", "another\n"));
}

#[test]
fn hidden_files_other_endings_and_repeated_paths_are_left_out() {
    let root = tempfile::tempdir().expect("a folder");
    for name in ["a.yaml", "b.yml", ".c.yaml", "d.yaml~", "README.md"] {
        fs::write(root.path().join(name), "").expect("writes");
    }
    let set = read_set(&[root.path().to_path_buf(), root.path().join("a.yaml")]).expect("reads");
    let names: Vec<_> = set.iter().map(|f| f.name.rsplit('/').next().unwrap_or_default().to_owned()).collect();
    assert_eq!(names, ["a.yaml", "b.yml"]);
}

#[test]
fn a_folder_of_links_to_itself_ends() {
    let root = tempfile::tempdir().expect("a folder");
    symlink(root.path(), root.path().join("again")).expect("links");
    fs::write(root.path().join("a.yaml"), "").expect("writes");
    let findings = read_set(&[root.path().to_path_buf()]).expect_err("it goes too deep");
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::OverLimit], "{findings:?}");
}

/// Makes something of the name `what.yaml` or `what` in a folder.
type Make = fn(&Path);

#[tokio::test]
async fn what_may_be_a_document_and_cannot_be_read_refuses_the_set_until_it_is_mended() {
    let cases: [(&str, Code, &str, Make); 6] = [
        ("what.yaml", Code::Unreadable, "a link to `nowhere`", |path| symlink("nowhere", path).expect("links")),
        ("what", Code::Unreadable, "a link to `nowhere`", |path| symlink("nowhere", path).expect("links")),
        ("what.yml", Code::Unreadable, "symbolic links", |path| symlink("what.yml", path).expect("links")),
        ("what.yaml", Code::Unreadable, "is a folder", |path| fs::create_dir(path).expect("creates")),
        ("what.yaml", Code::Unreadable, "a pipe, a socket or a device", |path| {
            symlink("/dev/null", path).expect("links");
        }),
        ("what", Code::OverLimit, "deeper than", |path| {
            fs::create_dir_all(path.join("1/2/3/4/5/6/7/8/9")).expect("creates");
        }),
    ];
    for (name, code, why, make) in cases {
        let root = tempfile::tempdir().expect("a folder");
        let (elsewhere, path) = (tempfile::tempdir().expect("a folder"), root.path().join(name));
        fs::write(root.path().join("a.yaml"), worker_set("one")).expect("writes");
        let mut watch = watch(vec![root.path().to_path_buf()], EVENTS_ONLY);
        assert_eq!(names(&next(&mut watch).await), ["one"]);
        make(&elsewhere.path().join("made"));
        fs::rename(elsewhere.path().join("made"), &path).expect("renames");
        let findings = next(&mut watch).await.expect_err(why);
        assert_eq!(findings[0].code, code, "{findings:?}");
        assert!(findings[0].message.contains(why) && findings[0].message.contains(name), "{findings:?}");
        fs::rename(&path, elsewhere.path().join("made")).expect("renames");
        assert_eq!(names(&next(&mut watch).await), ["one"]);
    }
}

#[test]
fn a_path_of_the_set_that_is_a_folder_named_like_a_document_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("tenants.yaml");
    fs::create_dir(&path).expect("creates");
    let findings = read_set(&[path]).expect_err("refused");
    assert!(findings[0].code == Code::Unreadable && findings[0].message.contains("is a folder"), "{findings:?}");
}

#[tokio::test]
async fn a_set_of_which_nothing_is_left_is_refused_and_comes_back_with_its_files() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, away) = (root.path().join("resources"), root.path().join("away"));
    fs::create_dir(&folder).expect("creates");
    let mut watch = watch(vec![folder.clone()], EVENTS_ONLY);
    assert!(names(&next(&mut watch).await).is_empty(), "at the start there may be nothing");
    put(&folder.join("a.yaml"), &worker_set("one"));
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    fs::rename(folder.join("a.yaml"), &away).expect("renames");
    assert_eq!(next(&mut watch).await.expect_err("refused")[0].code, Code::EmptySet);
    put(&folder.join("b.yaml"), "# nothing yet\n");
    assert_eq!(next(&mut watch).await.expect_err("refused")[0].code, Code::EmptySet);
    fs::rename(&away, folder.join("a.yaml")).expect("renames");
    assert_eq!(names(&next(&mut watch).await), ["one"]);
}

#[tokio::test]
async fn the_target_of_a_link_that_lies_elsewhere_is_watched_by_its_state() {
    let (root, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let target = elsewhere.path().join("tenants.yaml");
    fs::write(&target, worker_set("one")).expect("writes");
    symlink(&target, root.path().join("a.yaml")).expect("links");
    let mut watch = watch(vec![root.path().to_path_buf()], LOOK_ONLY);
    assert_eq!(names(&next(&mut watch).await), ["one"]);
    put(&target, &worker_set("three"));
    assert_eq!(names(&next(&mut watch).await), ["three"]);
    fs::remove_file(&target).expect("removes");
    assert_eq!(next(&mut watch).await.expect_err("refused")[0].code, Code::Unreadable);
    fs::write(&target, worker_set("four")).expect("writes");
    assert_eq!(names(&next(&mut watch).await), ["four"]);
}

#[tokio::test]
async fn a_file_that_is_written_replaced_or_swapped_behind_a_link_is_a_reason_to_look() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tls.crt");
    for version in ["..1", "..2"] {
        fs::create_dir(folder.path().join(version)).expect("creates");
        fs::write(folder.path().join(version).join("tls.crt"), version).expect("writes");
    }
    let link = |to: &str, name: &str| {
        symlink(to, folder.path().join("..new")).expect("links");
        fs::rename(folder.path().join("..new"), folder.path().join(name)).expect("renames");
    };
    link("..1", "..data");
    link("..data/tls.crt", "tls.crt");
    let mut changes = FileChanges::new(vec![path.clone()], EVENTS_ONLY);
    let mut look = async |what: &str| {
        tokio::time::timeout(PATIENCE, changes.next()).await.unwrap_or_else(|_| panic!("{what} is not noticed"));
        fs::read_to_string(&path).expect("reads")
    };
    assert_eq!(look("the first state").await, "..1");
    link("..2", "..data");
    assert_eq!(look("a swap behind a link").await, "..2");
    put(&path, "replaced");
    assert_eq!(look("a file in the place of the link").await, "replaced");
    fs::write(&path, "written").expect("writes");
    assert_eq!(look("a file written in place").await, "written");
}
