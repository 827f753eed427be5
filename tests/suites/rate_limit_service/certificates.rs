//! Certificates for tests.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority, and a certificate of `localhost` that it signed, for both ends.
pub fn certificates(dir: &Path) -> [String; 3] {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    // With the name of the certificate below, that one would count as self-signed.
    ca.distinguished_name.push(DnType::CommonName, "authority");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let cert = cert.signed_by(&key, &ca).unwrap();
    let files = [
        ("ca.pem", ca.pem()),
        ("cert.pem", cert.pem()),
        ("key.pem", key.serialize_pem()),
    ];
    files.map(|(name, text)| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}
