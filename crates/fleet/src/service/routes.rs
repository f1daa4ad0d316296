//! Which paths there are, and who may use them.
//!
//! In: a method and a path. Out: a [`Route`], or the problem that says why there is none. `docs/fleet-api.json` describes
//! exactly these; a test compares them.

use hyper::{Method, StatusCode};

use super::problem::Problem;
use crate::identity::{Name, Role};
use crate::tls::Peer;

/// What can be asked for.
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
    /// Whether a body belongs to it.
    pub(super) fn has_body(self) -> bool {
        matches!(self, Self::Enrol | Self::Heartbeat | Self::Request | Self::Report | Self::Drain)
    }
}

/// Who may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Public,
    Members,
    Only(Role),
}

/// `{name}` in a path stands for a member's name.
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

/// What a request is for, and the name in its path.
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
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", format!("{path} has no {method}"))
    } else {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "there is no such path; see /v1/openapi.json")
    })
}

/// The name in a path that is of this kind; none in it: `Some(None)`.
fn match_template(template: &str, path: &str) -> Option<Option<Name>> {
    let Some((before, after)) = template.split_once("{name}") else { return (template == path).then_some(None) };
    let name = path.strip_prefix(before)?.strip_suffix(after)?;
    name.parse().ok().map(Some)
}

fn check_access(access: Access, peer: Option<&Peer>) -> Result<(), Problem> {
    match (access, peer) {
        (Access::Public, _) | (Access::Members, Some(_)) => Ok(()),
        (_, None) => Err(Problem::not_allowed("this needs a certificate of the fleet")),
        (Access::Only(role), Some(peer)) if peer.identity.role == role => Ok(()),
        (Access::Only(role), Some(peer)) => {
            Err(Problem::not_allowed(format!("{}: this is for the role {role}", peer.identity)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let text = include_str!("../../../../docs/fleet-api.json");
        let description: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(description["openapi"].as_str().unwrap().starts_with("3.1."));
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, what) in methods.as_object().unwrap() {
                assert!(what["operationId"].is_string() && what["responses"]["200"].is_object(), "{method} {path}");
                described.insert((method.to_uppercase(), path.clone()));
            }
        }
        let routes = ROUTES.iter().map(|(_, method, path, _)| (method.to_string(), (*path).to_owned()));
        assert_eq!(described, routes.collect::<BTreeSet<_>>());
    }

    #[test]
    fn what_the_description_refers_to_is_there() {
        fn look(value: &serde_json::Value, root: &serde_json::Value, count: &mut usize) {
            if let Some(to) = value.get("$ref").and_then(|it| it.as_str()) {
                assert!(root.pointer(to.trim_start_matches('#')).is_some(), "{to}");
                *count += 1;
            }
            value.as_object().into_iter().flatten().for_each(|(_, inner)| look(inner, root, count));
            value.as_array().into_iter().flatten().for_each(|inner| look(inner, root, count));
        }
        let text = include_str!("../../../../docs/fleet-api.json");
        let root: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut count = 0;
        look(&root, &root, &mut count);
        assert!(count > 20);
    }

    #[test]
    fn a_path_is_found_by_method_and_form() {
        let status = |method, path| find_route(&method, path, None).map_err(|problem| problem.status).err();
        assert_eq!(find_route(&Method::GET, "/v1/health", None).unwrap(), (Route::Health, None));
        assert_eq!(status(Method::POST, "/v1/health"), Some(405));
        assert_eq!(status(Method::GET, "/v1/relays/"), Some(404));
        assert_eq!(status(Method::POST, "/v1/relays/a/b/drain"), Some(404));
        assert_eq!(status(Method::POST, "/v1/relays/fra-1/drain"), Some(403));
    }
}
