//! The object `oauth` of a server: where its access tokens come from.

use serde::Serialize;

use super::{
    fields::Field,
    problem::{ConfigProblem, Fault},
};
#[cfg(feature = "oauth")]
use crate::auth::{FileStore, OAuth};
use crate::spec::SpecError;

pub(super) const OAUTH: [&str; 8] = [
    "credentialsFile",
    "clientId",
    "clientSecret",
    "clientCredentials",
    "clientName",
    "clientMetadataUrl",
    "redirectUri",
    "scopes",
];

/// What the object says. It is written down only to be compared with the one before it.
#[derive(Clone, Default, Serialize)]
pub(super) struct Said {
    file: Option<String>,
    id: Option<String>,
    secret: Option<String>,
    credentials: bool,
    name: Option<String>,
    metadata: Option<String>,
    redirect: Option<String>,
    scopes: Vec<String>,
}

/// Reads the object. `null` is none.
pub(super) fn said(field: &Field<'_>) -> Result<Option<Said>, Fault> {
    if field.is_null() {
        return Ok(None);
    }
    let object = field.object()?;
    object.only(&OAUTH)?;
    let mut said = Said::default();
    let text = |field: &Field<'_>| field.text().map(Some);
    object.set("credentialsFile", &mut said.file, text)?;
    object.set("clientId", &mut said.id, text)?;
    object.set("clientSecret", &mut said.secret, text)?;
    object.set("clientCredentials", &mut said.credentials, Field::flag)?;
    object.set("clientName", &mut said.name, text)?;
    object.set("clientMetadataUrl", &mut said.metadata, text)?;
    object.set("redirectUri", &mut said.redirect, text)?;
    if let Some(scopes) = object.find("scopes") {
        let scopes = scopes.list()?;
        said.scopes = scopes.iter().map(Field::text).collect::<Result<_, _>>()?;
    }
    if said.file.is_none() && !said.credentials {
        // What a person granted is kept, and is where a later configuration finds it too.
        return Err(Fault {
            field: Some(format!("{}/credentialsFile", field.path())),
            ..field.fault(ConfigProblem::Missing)
        });
    }
    Ok(Some(said))
}

impl Said {
    /// What can be compared with another one.
    #[cfg(feature = "oauth")]
    pub(super) fn written(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The source that it describes, for the server at this address.
    #[cfg(feature = "oauth")]
    pub(super) fn source(&self, url: &str) -> Result<OAuth, SpecError> {
        let mut oauth = OAuth::for_server(url).scopes(self.scopes.iter().cloned());
        if let Some(file) = &self.file {
            oauth = oauth.store(FileStore::new(file));
        }
        if let Some(id) = &self.id {
            oauth = oauth.client_id(id);
        }
        if let Some(secret) = &self.secret {
            oauth = oauth.client_secret(secret);
        }
        if self.credentials {
            oauth = oauth.client_credentials();
        }
        if let Some(name) = &self.name {
            oauth = oauth.client_name(name);
        }
        if let Some(url) = &self.metadata {
            oauth = oauth.client_metadata_url(url);
        }
        if let Some(uri) = &self.redirect {
            oauth = oauth.redirect_uri(uri);
        }
        oauth.build()
    }

    #[cfg(not(feature = "oauth"))]
    pub(super) fn source(&self, _: &str) -> Result<std::convert::Infallible, SpecError> {
        Err(SpecError::NotCompiled { feature: "oauth" })
    }
}
