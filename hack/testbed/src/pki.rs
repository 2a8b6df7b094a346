//! Certificates and keys of one testbed: the authority, the serving certificate, one client
//! certificate per identity, and the key pair that signs ServiceAccount tokens.
//!
//! An identity is a certificate whose common name is the user and whose organizations are the
//! groups, as kube-apiserver reads them. RBAC sees no difference to a ServiceAccount's token.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Who talks to the apiserver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// The person at the keyboard and the test itself (`system:masters`).
    Admin,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which keeps Leases and conditions of simulated nodes.
    Kwok,
    /// The CSI external-attacher.
    Attacher,
    /// The simulated kubelets. One identity for all of them, so not a Node authorizer user.
    TestbedNodes,
    /// The ServiceAccount of `bulkhead-controller`.
    OperatorController,
    /// The ServiceAccount of `bulkhead-csi-sidecar`.
    CsiSidecar,
    /// Anyone else, for tests of what is refused. `system:authenticated` comes by itself.
    User {
        /// The user's name.
        name: String,
        /// At most two groups: more do not fit into a certificate made here.
        groups: Vec<String>,
    },
}

const MASTERS: &str = "system:masters";
const NAMESPACE: &str = "bulkhead-system";

impl Identity {
    /// The user name that RBAC and the audit log see.
    pub fn user(&self) -> String {
        match self {
            Self::Admin => "testbed-admin".into(),
            Self::ControllerManager => "system:kube-controller-manager".into(),
            Self::Scheduler => "system:kube-scheduler".into(),
            Self::Kwok => "testbed-kwok".into(),
            Self::Attacher => "testbed-attacher".into(),
            Self::TestbedNodes => "testbed-nodes".into(),
            Self::OperatorController => {
                format!("system:serviceaccount:{NAMESPACE}:bulkhead-controller")
            }
            Self::CsiSidecar => format!("system:serviceaccount:{NAMESPACE}:bulkhead-csi-sidecar"),
            Self::User { name, .. } => name.clone(),
        }
    }

    fn groups(&self) -> Vec<String> {
        match self {
            Self::Admin | Self::Kwok | Self::Attacher | Self::TestbedNodes => vec![MASTERS.into()],
            Self::ControllerManager | Self::Scheduler => Vec::new(),
            Self::OperatorController | Self::CsiSidecar => {
                vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{NAMESPACE}")]
            }
            Self::User { groups, .. } => groups.clone(),
        }
    }

    /// A file name that is different for different identities.
    pub(crate) fn file_stem(&self) -> String {
        let mut parts = vec![self.user()];
        if let Self::User { groups, .. } = self {
            parts.extend(groups.iter().cloned());
        }
        parts.join("+").replace([':', '/'], "-")
    }
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key or certificate could not be generated.
    #[error("cannot make a certificate for {subject}: {source}")]
    Generate {
        /// Whom it was for.
        subject: String,
        /// The cause.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// More groups than the certificate library can express.
    #[error("{user} has {count} groups, a certificate made here holds at most two: name fewer")]
    TooManyGroups {
        /// The user.
        user: String,
        /// How many groups were asked for.
        count: usize,
    },
}

/// A certificate and its private key, as files in PEM form.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The certificates of one testbed, kept in one folder.
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pki").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Pki {
    /// Makes an authority, the serving certificate and the ServiceAccount key pair in `folder`.
    ///
    /// # Errors
    /// When a key cannot be generated or a file cannot be written.
    pub fn create(folder: &Path, addresses: &[Ipv4Addr]) -> Result<Self, PkiError> {
        let authority = authority().map_err(generate_error("the authority"))?;
        let pki = Self { folder: folder.to_owned(), authority };
        write(&pki.authority_file(), &pki.authority.pem())?;

        let mut serving = CertificateParams::new(vec!["localhost".to_owned(), "kubernetes.default.svc".to_owned()])
            .map_err(generate_error("the servers"))?;
        let addresses = [Ipv4Addr::LOCALHOST].iter().chain(addresses);
        serving.subject_alt_names.extend(addresses.map(|address| SanType::IpAddress(IpAddr::V4(*address))));
        serving.distinguished_name.push(DnType::CommonName, "testbed-servers");
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        pki.sign("serving", serving)?;

        let key = KeyPair::generate().map_err(generate_error("ServiceAccount tokens"))?;
        write(&pki.service_account_key(), &key.serialize_pem())?;
        write(&pki.service_account_public_key(), &key.public_key_pem())?;
        Ok(pki)
    }

    /// The authority's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The serving certificate, valid for 127.0.0.1, localhost and the addresses given.
    pub fn serving(&self) -> CertificateFiles {
        self.files("serving")
    }

    /// The private key that signs ServiceAccount tokens.
    pub fn service_account_key(&self) -> PathBuf {
        self.folder.join("service-account.key")
    }

    /// The public key that verifies them.
    pub fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("service-account.pub")
    }

    /// Makes a client certificate for an identity.
    ///
    /// # Errors
    /// When it cannot be generated or written, or has more than two groups.
    pub fn client(&self, identity: &Identity) -> Result<CertificateFiles, PkiError> {
        let user = identity.user();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user.as_str());
        // rcgen keeps one value per attribute type; the spelled-out object identifier of
        // "organization" is a second type to it and the same attribute to everyone else.
        let organizations = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        let groups = identity.groups();
        if groups.len() > organizations.len() {
            return Err(PkiError::TooManyGroups { user, count: groups.len() });
        }
        for (kind, group) in organizations.into_iter().zip(groups) {
            params.distinguished_name.push(kind, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&identity.file_stem(), params)
    }

    fn sign(&self, stem: &str, mut params: CertificateParams) -> Result<CertificateFiles, PkiError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(generate_error(stem))?;
        let certificate = params.signed_by(&key, &self.authority).map_err(generate_error(stem))?;
        let files = self.files(stem);
        write(&files.certificate, &certificate.pem())?;
        write(&files.key, &key.serialize_pem())?;
        Ok(files)
    }

    fn files(&self, stem: &str) -> CertificateFiles {
        CertificateFiles {
            certificate: self.folder.join(format!("{stem}.crt")),
            key: self.folder.join(format!("{stem}.key")),
        }
    }
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "testbed-authority");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn generate_error(subject: &str) -> impl FnOnce(rcgen::Error) -> PkiError {
    let subject = subject.to_owned();
    move |source| PkiError::Generate { subject, source }
}

fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    fs::write(path, text).map_err(|source| PkiError::Write { path: path.to_owned(), source })
}
