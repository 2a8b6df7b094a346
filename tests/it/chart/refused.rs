//! Values with which Bulkhead would not work: each is refused before anything is installed, with what to do.

use libtest_mimic::Failed;

use super::render::{template, template_in};
use super::values::S3;

/// Values, and what is said.
const CASES: [(&[&str], &str); 14] = [
    (&["--set", "s3.enabled=true"], "s3.enabled needs s3.endpointUrl"),
    (
        &["--set", "s3.enabled=true,s3.endpointUrl=https://s3.example.com,mountpointPod.namespace=kube-system"],
        "must be a namespace of Mountpoint Pods alone, not kube-system",
    ),
    (
        &["--set", S3, "--set", "s3.settings.AWS_ACCESS_KEY_ID=a"],
        "s3.settings.AWS_ACCESS_KEY_ID would stand in a ConfigMap",
    ),
    (
        &["--set", S3, "--set", "s3.settings.AWS_SECRET_ACCESS_KEY=a"],
        "put the keys into the Secret s3-secret of kube-system",
    ),
    (&["--set", S3, "--set", "s3.settings.AWS_SESSION_TOKEN=a"], "s3.settings.AWS_SESSION_TOKEN would stand"),
    (&["--set", "controler.replicas=2"], "additional properties 'controler' not allowed"),
    (&["--set", "controller.replicas=two"], "at '/controller/replicas': got string, want integer"),
    (&["--set", "image.registry=https://registry.example.com"], "at '/image/registry'"),
    (&["--set", "image.pullPolicy=Maybe"], "at '/image/pullPolicy'"),
    (&["--set", "volumeHealth.enforcement=enforced"], "at '/volumeHealth/enforcement'"),
    (&["--set", "controller.image.digest=sha256:1"], "at '/controller/image/digest'"),
    (&["--set", "s3.endpointUrl=s3.example.com"], "at '/s3/endpointUrl'"),
    (&["--set", "controller.outOfServiceMax=soon"], "at '/controller/outOfServiceMax'"),
    (&["--kube-version", "1.32.0"], "chart requires kubeVersion: >=1.33.0-0"),
];

pub fn what_cannot_work_is_refused() -> Result<(), Failed> {
    for (values, expected) in CASES {
        is_refused(&format!("{values:?}"), template(values), expected)?;
    }
    is_refused("the namespace default", template_in("default", &[]), "add `--namespace bulkhead-system")
}

fn is_refused<T>(what: &str, answer: Result<T, String>, expected: &str) -> Result<(), Failed> {
    match answer {
        Err(said) if said.contains(expected) => Ok(()),
        Err(said) => Err(format!("{what} is refused with other words than {expected:?}: {said}").into()),
        Ok(_) => Err(format!("{what} is not refused").into()),
    }
}
