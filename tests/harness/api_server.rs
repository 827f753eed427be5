//! A Kubernetes API server, with etcd, and its users.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use tokio::net::TcpStream;

use crate::{Client, Process, Signal, free_port, programs::from_env};

/// The administrator's name.
const ADMIN: &str = "admin";

/// A running API server.
#[derive(Debug)]
pub struct ApiServer {
    programs: Programs,
    dir: PathBuf,
    ports: Ports,
    server: Option<Process>,
    etcd: Option<Process>,
    /// `kubectl proxy` of the administrator: requests without TLS and tokens.
    proxy: Process,
}

#[derive(Debug)]
struct Programs {
    api_server: PathBuf,
    etcd: PathBuf,
    kubectl: PathBuf,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    api_server: u16,
    etcd: u16,
    peer: u16,
    proxy: u16,
}

impl ApiServer {
    /// Starts one whose users, beside an administrator, are these, with the data that `dir` has of another
    /// one that was stopped.
    pub async fn start(dir: &Path, users: &[&str]) -> Result<Self> {
        let programs = Programs {
            api_server: from_env("RL_TEST_API_SERVER")?,
            etcd: from_env("RL_TEST_ETCD")?,
            kubectl: from_env("RL_TEST_KUBECTL")?,
        };
        let ports = Ports {
            api_server: free_port()?,
            etcd: free_port()?,
            peer: free_port()?,
            proxy: free_port()?,
        };
        let mut tokens = format!("{ADMIN},{ADMIN},{ADMIN},system:masters\n");
        for user in users {
            // The name is the token.
            writeln!(tokens, "{user},{user},{user}")?;
        }
        std::fs::write(dir.join("users.csv"), tokens)?;
        for user in users.iter().chain(&[ADMIN]) {
            std::fs::write(config_of(dir, user), kubeconfig(dir, ports, user))?;
        }
        let etcd = start_etcd(&programs, ports, dir).await?;
        let mut server = start_server(&programs, ports, dir).await?;
        let proxy = start_proxy(&programs, ports, dir)?;
        is_ready(&mut server, ports).await?;
        Ok(Self {
            programs,
            dir: dir.to_path_buf(),
            ports,
            server: Some(server),
            etcd: Some(etcd),
            proxy,
        })
    }

    /// Stops all of it.
    pub async fn stop(self) -> Result<()> {
        for process in [Some(self.proxy), self.server, self.etcd] {
            process.context("it does not run")?.stop().await?;
        }
        Ok(())
    }

    /// The URL of a path, for requests of the administrator.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports.proxy)
    }

    /// The file that KUBECONFIG names for a user.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        config_of(&self.dir, user)
    }

    /// Runs kubectl as a user, with a manifest on its standard input.
    pub fn kubectl_as(&self, user: &str, arguments: &[&str], manifest: &str) -> Result<Output> {
        let input = self.dir.join(format!("input-{}.yaml", free_port()?));
        std::fs::write(&input, manifest)?;
        let mut kubectl = Command::new(&self.programs.kubectl);
        kubectl
            .args(arguments)
            .stdin(std::fs::File::open(&input)?)
            .env("HOME", &self.dir)
            .env("KUBECONFIG", self.kubeconfig(user));
        Ok(kubectl.output()?)
    }

    /// Runs kubectl as the administrator, and expects it to succeed.
    pub fn kubectl(&self, arguments: &[&str], manifest: &str) -> Result<String> {
        let output = self.kubectl_as(ADMIN, arguments, manifest)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Kills the API server and starts it again.
    pub async fn kill(&mut self) -> Result<()> {
        kill(self.server.take()).await?;
        let server = start_server(&self.programs, self.ports, &self.dir).await?;
        is_ready(self.server.insert(server), self.ports).await
    }

    /// Kills etcd and starts it again.
    pub async fn kill_etcd(&mut self) -> Result<()> {
        kill(self.etcd.take()).await?;
        self.etcd = Some(start_etcd(&self.programs, self.ports, &self.dir).await?);
        Ok(())
    }
}

async fn kill(process: Option<Process>) -> Result<()> {
    let mut process = process.context("it does not run")?;
    process.signal(Signal::KILL)?;
    process.ended().await.map(drop)
}

fn config_of(dir: &Path, user: &str) -> PathBuf {
    dir.join(format!("kubeconfig-{}.yaml", user.replace(':', "-")))
}

fn kubeconfig(dir: &Path, ports: Ports, user: &str) -> String {
    let certificate = dir.join("certificates/apiserver.crt");
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: test, user: {{token: '{user}'}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test, namespace: default}}}}]\n",
        ports.api_server,
        certificate.display()
    )
}

async fn start_etcd(programs: &Programs, ports: Ports, dir: &Path) -> Result<Process> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.peer);
    let mut command = Command::new(&programs.etcd);
    command
        .arg("--data-dir")
        .arg(dir.join("etcd"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        // Tests kill it, but not the machine.
        .arg("--unsafe-no-fsync");
    let mut etcd = Process::start(&format!("etcd-{}", ports.etcd), &mut command, dir)?;
    let (http, health) = (Client::new(), format!("{client}/health"));
    let healthy = async || {
        let reply = http.get(&health).send().await.ok()?;
        (reply.status == 200).then_some(())
    };
    etcd.ready(healthy).await?;
    Ok(etcd)
}

async fn start_server(programs: &Programs, ports: Ports, dir: &Path) -> Result<Process> {
    let mut command = Command::new(&programs.api_server);
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={}", ports.api_server))
        .arg("--cert-dir")
        .arg(dir.join("certificates"))
        .arg("--users")
        .arg(dir.join("users.csv"));
    let name = format!("api-server-{}", ports.api_server);
    let mut server = Process::start(&name, &mut command, dir)?;
    // Then it has its certificate, too.
    let address = (Ipv4Addr::LOCALHOST, ports.api_server);
    server
        .ready(async || TcpStream::connect(address).await.ok())
        .await?;
    Ok(server)
}

fn start_proxy(programs: &Programs, ports: Ports, dir: &Path) -> Result<Process> {
    let mut command = Command::new(&programs.kubectl);
    command
        .args(["proxy", "--port", &ports.proxy.to_string()])
        .env("KUBECONFIG", config_of(dir, ADMIN));
    let name = format!("kubectl-proxy-{}", ports.proxy);
    Process::start(&name, &mut command, dir)
}

/// Waits until a server says so, by the proxy, because it speaks TLS only.
async fn is_ready(server: &mut Process, ports: Ports) -> Result<()> {
    let url = format!("http://127.0.0.1:{}/readyz", ports.proxy);
    let http = Client::new();
    let ready = async || {
        let reply = http.get(&url).send().await.ok()?;
        (reply.status == 200).then_some(())
    };
    server.ready(ready).await
}
