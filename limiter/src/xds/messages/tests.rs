use super::*;

#[test]
fn an_xds_configuration_equals_its_file_form() {
    let limit = RateLimitPolicy {
        unit: 4,
        requests_per_unit: 7,
        name: "users".to_owned(),
        replaces: vec![RateLimitReplace {
            name: "all".to_owned(),
        }],
        ..RateLimitPolicy::default()
    };
    let user = RateLimitDescriptor {
        key: "user".to_owned(),
        rate_limit: Some(limit),
        shadow_mode: true,
        quota_mode: true,
        detailed_metric: true,
        ..RateLimitDescriptor::default()
    };
    let free = RateLimitDescriptor {
        key: "plan".to_owned(),
        value: "free: *".to_owned(),
        rate_limit: Some(RateLimitPolicy {
            unlimited: true,
            ..RateLimitPolicy::default()
        }),
        descriptors: vec![user],
        ..RateLimitDescriptor::default()
    };
    let config = RateLimitConfig {
        name: "x".to_owned(),
        domain: "shop/http".to_owned(),
        descriptors: vec![free],
    };
    let expected = json!({"domain": "shop/http", "descriptors": [{
        "key": "plan", "value": "free: *", "rate_limit": {"unlimited": true},
        "descriptors": [{
            "key": "user", "shadow_mode": true, "quota_mode": true, "detailed_metric": true,
            "rate_limit": {
                "unit": "day", "requests_per_unit": 7, "name": "users", "replaces": [{"name": "all"}]
            }
        }]
    }]});
    assert_eq!(config.file(), expected);
}
