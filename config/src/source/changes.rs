//! Files that are no documents (certificates, keys), watched.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use super::files::{Events, WatchSettings, settled};

/// Tells when one of a few files may have changed. What it says is a reason to look, not a change: whoever looks compares
/// what the files hold.
///
/// Events come from the folders of the files, so a file that is replaced by a rename, or by the symlink swap of a
/// mounted Secret, is seen as one that is written. A slow poll stands behind the events.
pub struct FileChanges {
    paths: Vec<PathBuf>,
    settings: WatchSettings,
    changed: Arc<Notify>,
    events: Events,
}

impl FileChanges {
    /// Watches `paths`. To be used on a tokio runtime with time enabled.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, settings: WatchSettings) -> Self {
        let changed = Arc::new(Notify::new());
        let events = Events::new(Arc::clone(&changed), &paths);
        Self { paths, settings, changed, events }
    }

    /// Waits until it is time to look: at once when a folder is newly watched (what happened in it before sent no event),
    /// else after an event and a quiet moment, or after the poll.
    pub async fn next(&mut self) {
        if !self.events.cover(&self.paths) {
            settled(&self.changed, self.settings).await;
        }
    }
}

impl std::fmt::Debug for FileChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileChanges").field("paths", &self.paths).finish_non_exhaustive()
    }
}
