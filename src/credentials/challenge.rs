//! A `WWW-Authenticate` header, as far as a client of MCP acts on it.

/// A `Bearer` challenge (RFC 6750, RFC 9728).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Challenge {
    /// The scopes that the request needs, separated by spaces.
    pub scope: Option<String>,
    /// Where the resource describes itself and names its authorisation servers.
    pub resource_metadata: Option<String>,
    /// The error code, such as `invalid_token` or `insufficient_scope`.
    pub error: Option<String>,
    /// The realm.
    pub realm: Option<String>,
}

impl Challenge {
    /// Reads the header. `None` where it holds no `Bearer` challenge; of several, each parameter's
    /// first value counts.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut is_bearer = false;
        for item in items(header) {
            let mut parameter = item;
            // A scheme stands before a space that stands before any `=`.
            let name_end = item.find(|c: char| c == '=' || c.is_whitespace());
            let begins_scheme = match name_end {
                None => true,
                Some(at) => {
                    let rest = item[at..].trim_start();
                    !rest.starts_with('=')
                }
            };
            if begins_scheme {
                let (scheme, rest) = item.split_once(char::is_whitespace).unwrap_or((item, ""));
                is_bearer = scheme.eq_ignore_ascii_case("bearer");
                parameter = rest.trim();
                if is_bearer {
                    found.get_or_insert_default();
                }
            }
            if let (true, Some(challenge), Some((name, value))) =
                (is_bearer, &mut found, parameter.split_once('='))
            {
                challenge.take(name.trim(), unquoted(value.trim()));
            }
        }
        found
    }

    fn take(&mut self, name: &str, value: String) {
        let field = match name.to_ascii_lowercase().as_str() {
            "scope" => &mut self.scope,
            "resource_metadata" => &mut self.resource_metadata,
            "error" => &mut self.error,
            "realm" => &mut self.realm,
            _ => return,
        };
        field.get_or_insert(value);
    }

    /// Whether the token is good and its scope too narrow.
    #[must_use]
    pub fn is_insufficient_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}

/// The pieces between commas that stand outside of quotes.
fn items(header: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut quoted, mut escaped, mut from) = (false, false, 0);
    for (at, c) in header.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                items.push(header[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(header[from..].trim());
    items.retain(|item| !item.is_empty());
    items
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"') else {
        return value.to_owned();
    };
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_challenge_is_read_among_others_and_in_any_spelling() {
        let whole = r#"Basic realm="a, b", bearer error="insufficient_scope", scope = "files:read files:write", resource_metadata="https://h/.well-known/x?a=b,c", DPoP error="other""#;
        let challenge = Challenge::parse(whole).unwrap();
        assert_eq!(challenge.scope.as_deref(), Some("files:read files:write"));
        assert_eq!(
            challenge.resource_metadata.as_deref(),
            Some("https://h/.well-known/x?a=b,c")
        );
        assert!(challenge.is_insufficient_scope());
        assert_eq!(challenge.realm, None, "that is another scheme's");

        let bare = Challenge::parse("Bearer").unwrap();
        assert_eq!(bare, Challenge::default());
        let escaped = Challenge::parse(r#"Bearer realm="say \"a, b\"", scope=x"#).unwrap();
        assert_eq!(escaped.realm.as_deref(), Some(r#"say "a, b""#));
        assert_eq!(escaped.scope.as_deref(), Some("x"));
    }

    #[test]
    fn what_is_no_bearer_challenge_is_none() {
        for header in [
            "",
            ",",
            "Basic realm=\"Bearer\"",
            "DPoP scope=\"x\"",
            "=\"",
            "Basic \"Bearer",
        ] {
            assert_eq!(Challenge::parse(header), None, "{header}");
        }
    }
}
