//! The routing table of the API: its paths, and the roles that may call each of them.
//!
//! Method and path select a [`Route`], or a problem (403, 404, 405) that states why none applies. `docs/fleet-api.json` describes
//! exactly these paths; a test compares the two.

use hyper::{Method, StatusCode};

use super::problem::Problem;
use crate::identity::{Name, Role};
use crate::tls::Peer;

/// The operations of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Enrol,
    Renew,
    Heartbeat,
    Request,
    Candidates,
    Report,
    Release,
    Drain,
    Relays,
    Edges,
    RevocationList,
    OpenApi,
    Health,
    Service,
}

impl Route {
    /// Whether requests to this route carry a body.
    pub(super) fn has_body(self) -> bool {
        matches!(self, Self::Enrol | Self::Heartbeat | Self::Request | Self::Report | Self::Drain)
    }
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Public,
    Members,
    Only(Role),
}

/// All routes. `{name}` in a path stands for a member's name.
const ROUTES: [(Route, Method, &str, Access); 14] = [
    (Route::Enrol, Method::POST, "/v1/enrol", Access::Public),
    (Route::Renew, Method::POST, "/v1/renew", Access::Members),
    (Route::Heartbeat, Method::POST, "/v1/relays/heartbeat", Access::Only(Role::Relay)),
    (Route::Drain, Method::POST, "/v1/relays/{name}/drain", Access::Only(Role::Operator)),
    (Route::Relays, Method::GET, "/v1/relays", Access::Only(Role::Operator)),
    (Route::Request, Method::POST, "/v1/edges/request", Access::Only(Role::Edge)),
    (Route::Report, Method::POST, "/v1/edges/report", Access::Only(Role::Edge)),
    (Route::Release, Method::POST, "/v1/edges/release", Access::Only(Role::Edge)),
    (Route::Edges, Method::GET, "/v1/edges", Access::Only(Role::Operator)),
    (Route::Candidates, Method::GET, "/v1/candidates", Access::Only(Role::Edge)),
    (Route::RevocationList, Method::GET, "/v1/revoked", Access::Members),
    (Route::OpenApi, Method::GET, "/v1/openapi.json", Access::Public),
    (Route::Health, Method::GET, "/v1/health", Access::Public),
    (Route::Service, Method::GET, "/v1/service", Access::Only(Role::Operator)),
];

/// The route of a request, and the name in its path. Fails with 403, 404 or 405.
pub(super) fn find_route(
    method: &Method,
    path: &str,
    peer: Option<&Peer>,
) -> Result<(Route, Option<Name>), Problem> {
    let mut has_path = false;
    for (route, route_method, template, access) in &ROUTES {
        let Some(name) = match_template(template, path) else { continue };
        has_path = true;
        if route_method == method {
            check_access(*access, peer)?;
            return Ok((*route, name));
        }
    }
    Err(if has_path {
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            format!("{path} does not support the method {method}"),
        )
    } else {
        Problem::new(StatusCode::NOT_FOUND, "not_found", "no such path; /v1/openapi.json describes the API")
    })
}

/// Matches a path against a template and returns the member name in it; `Some(None)`: the template contains no name.
fn match_template(template: &str, path: &str) -> Option<Option<Name>> {
    let Some((before, after)) = template.split_once("{name}") else { return (template == path).then_some(None) };
    let name = path.strip_prefix(before)?.strip_suffix(after)?;
    name.parse().ok().map(Some)
}

fn check_access(access: Access, peer: Option<&Peer>) -> Result<(), Problem> {
    match (access, peer) {
        (Access::Public, _) | (Access::Members, Some(_)) => Ok(()),
        (_, None) => Err(Problem::not_allowed("a client certificate of this fleet is required")),
        (Access::Only(role), Some(peer)) if peer.identity.role == role => Ok(()),
        (Access::Only(role), Some(peer)) => {
            Err(Problem::not_allowed(format!("{}: only the role {role} may call this", peer.identity)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_api_description_lists_exactly_the_routes() {
        let text = include_str!("../../../../docs/fleet-api.json");
        let description: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(description["openapi"].as_str().unwrap().starts_with("3.1."));
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(
                    operation["operationId"].is_string() && operation["responses"]["200"].is_object(),
                    "{method} {path}"
                );
                described.insert((method.to_uppercase(), path.clone()));
            }
        }
        let routes = ROUTES.iter().map(|(_, method, path, _)| (method.to_string(), (*path).to_owned()));
        assert_eq!(described, routes.collect::<BTreeSet<_>>());
    }

    #[test]
    fn every_reference_in_the_api_description_resolves() {
        fn check_refs(value: &serde_json::Value, root: &serde_json::Value, count: &mut usize) {
            if let Some(to) = value.get("$ref").and_then(|reference| reference.as_str()) {
                assert!(root.pointer(to.trim_start_matches('#')).is_some(), "{to}");
                *count += 1;
            }
            value.as_object().into_iter().flatten().for_each(|(_, inner)| check_refs(inner, root, count));
            value.as_array().into_iter().flatten().for_each(|inner| check_refs(inner, root, count));
        }
        let text = include_str!("../../../../docs/fleet-api.json");
        let root: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut count = 0;
        check_refs(&root, &root, &mut count);
        assert!(count > 20);
    }

    #[test]
    fn a_route_is_selected_by_method_and_path() {
        let status = |method, path| find_route(&method, path, None).map_err(|problem| problem.status).err();
        assert_eq!(find_route(&Method::GET, "/v1/health", None).unwrap(), (Route::Health, None));
        assert_eq!(status(Method::POST, "/v1/health"), Some(405));
        assert_eq!(status(Method::GET, "/v1/relays/"), Some(404));
        assert_eq!(status(Method::POST, "/v1/relays/a/b/drain"), Some(404));
        assert_eq!(status(Method::POST, "/v1/relays/fra-1/drain"), Some(403));
    }
}
