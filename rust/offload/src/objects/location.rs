//! [`Location`]: where objects are kept.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "cloud")]
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;

use super::folder::PrivateFolder;
use crate::error::Error;
use crate::key::StoredKey;

const EXAMPLES: &str =
    "\"s3://bucket/prefix\", \"gs://bucket/prefix\", \"az://container/prefix\" or \"file:///path\"";

/// A store of objects, and what all names in it begin with.
#[derive(Clone)]
pub struct Location {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    url: String,
}

impl Location {
    /// The location of a URL: `s3://`, `gs://` or `az://` with bucket and prefix, or `file://` with
    /// a folder, which is made if needed. Access to a bucket is read from the environment, as
    /// `AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT` or `AZURE_STORAGE_ACCOUNT_NAME`. No request
    /// goes to the bucket yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says what the URL or the environment lacks; [`Error::Io`] for a folder that
    /// cannot be made.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if scheme == "file" {
            return Self::folder(url, rest);
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(scheme, "s3" | "gs" | "az") || bucket.is_empty() {
            return Err(Error::InvalidConfig(format!(
                "objects {url:?} names no bucket and no folder; write for example {EXAMPLES}"
            )));
        }
        let refused = |error| Error::InvalidConfig(format!("objects {url:?}: {error}"));
        let prefix =
            Path::parse(prefix.trim_matches('/')).map_err(|error| refused(error.into()))?;
        let store = open_bucket(scheme, bucket).map_err(refused)?;
        Ok(Self { store, prefix, url: url.to_owned() })
    }

    fn folder(url: &str, path: &str) -> Result<Self, Error> {
        if !path.starts_with('/') {
            return Err(Error::InvalidConfig(format!(
                "objects {url:?} is no absolute path; write for example \"file:///mnt/kv\""
            )));
        }
        // The folder itself may be made, those above it may not: one that is missing is a mistyped path,
        // or a share that is not mounted.
        let above = std::path::Path::new(path).parent();
        if let Some(above) = above.filter(|above| !above.is_dir()) {
            return Err(Error::InvalidConfig(format!(
                "objects {url:?}: there is no folder {}; mount or make it",
                above.display()
            )));
        }
        let store = PrivateFolder::open(std::path::Path::new(path))?;
        Ok(Self::over(Arc::new(store), url))
    }

    /// Objects in a store of any kind; `url` names it in messages.
    pub fn over(store: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self { store, prefix: Path::default(), url: url.to_owned() }
    }

    pub(super) fn path_of(&self, key: StoredKey) -> Path {
        let name = key.to_string();
        name.split('/').fold(self.prefix.clone(), Path::join)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({:?})", self.url)
    }
}

#[cfg(not(feature = "cloud"))]
fn open_bucket(scheme: &str, _: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    Err(object_store::Error::NotImplemented {
        operation: format!("{scheme}://"),
        implementer: "a build without the feature `cloud`".to_owned(),
    })
}

#[cfg(feature = "cloud")]
fn open_bucket(scheme: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    use object_store::{ClientConfigKey, RetryConfig};

    /// Longest time of one try.
    const TIMEOUT: Duration = Duration::from_secs(20);

    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 2, retry_timeout: TIMEOUT, ..RetryConfig::default() };
    let (timeout, seconds) = (ClientConfigKey::Timeout, format!("{} s", TIMEOUT.as_secs()));
    macro_rules! build {
        ($builder:ident, $with_name:ident, $client:path) => {
            Arc::new(
                $builder::from_env()
                    .$with_name(bucket)
                    .with_config($client(timeout), seconds)
                    .with_retry(retry)
                    .build()?,
            )
        };
    }
    Ok(match scheme {
        "s3" => {
            let mut builder = AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_config(AmazonS3ConfigKey::Client(timeout), seconds)
                .with_retry(retry);
            let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
            if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(builder.build()?)
        }
        "gs" => build!(GoogleCloudStorageBuilder, with_bucket_name, GoogleConfigKey::Client),
        _ => build!(MicrosoftAzureBuilder, with_container_name, AzureConfigKey::Client),
    })
}
