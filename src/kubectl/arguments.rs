//! What the arguments of a container say.

/// The value of a flag, with one dash or two, after `=` or as the next argument.
pub fn setting(args: &[String], flag: &str) -> Option<String> {
    let bare = |arg: &str| arg.trim_start_matches('-').to_owned();
    args.iter().enumerate().filter(|(_, arg)| arg.starts_with('-')).find_map(|(index, arg)| {
        match bare(arg).split_once('=') {
            Some((name, value)) => (name == flag).then(|| value.to_owned()),
            None => (bare(arg) == flag).then(|| args.get(index + 1).cloned()).flatten(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_in_every_spelling() {
        let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        assert_eq!(setting(&args(&["--kube-api-qps=100"]), "kube-api-qps").as_deref(), Some("100"));
        assert_eq!(setting(&args(&["-kube-api-qps", "7.5"]), "kube-api-qps").as_deref(), Some("7.5"));
        assert_eq!(setting(&args(&["--kube-api-qps"]), "kube-api-qps"), None);
        assert_eq!(setting(&args(&["kube-api-qps=1"]), "kube-api-qps"), None);
    }
}
