package pipelines

import (
	"fmt"

	"dagger/parity/internal/dagger"
)

// The ports of the fixtures that are services.
const (
	registryPort = 5000
	agentPort    = 8001
	runtimePort  = 8002
	sshPort      = 22
)

// everywhere is a port on every address of a container.
func everywhere(port int) string { return fmt.Sprintf("0.0.0.0:%d", port) }

// Registry is an empty registry that counts what is asked of it. With a user it asks for a login.
func (p Pipelines) Registry(user string, password *dagger.Secret) *dagger.Service {
	const passwordFile = "/run/secrets/password"
	c, argv := p.fixtures(), []string{"parity", "fixture", "registry", "--listen", everywhere(registryPort)}
	if user != "" {
		c = c.WithMountedSecret(passwordFile, password)
		argv = append(argv, "--user", user, "--password-file", passwordFile)
	}
	return c.WithExposedPort(registryPort).AsService(dagger.ContainerAsServiceOpts{Args: argv})
}

// Artifacts is a server of an agent's executable and a runtime that counts what is asked of each.
func (p Pipelines) Artifacts(agent, runtime *dagger.File) *dagger.Service {
	const agentFile, runtimeFile = "/srv/agent", "/srv/runtime"
	return p.fixtures().
		WithFile(agentFile, agent).
		WithFile(runtimeFile, runtime).
		WithExposedPort(agentPort).
		WithExposedPort(runtimePort).
		AsService(dagger.ContainerAsServiceOpts{Args: []string{
			"parity", "fixture", "artifacts", "--agent", agentFile, "--runtime", runtimeFile,
			"--agent-listen", everywhere(agentPort), "--runtime-listen", everywhere(runtimePort),
		}})
}

// RemoteMachine is a Debian machine with msb and an SSH server, into which those come who have one of the keys. It shows the host key, which is
// private.
func (p Pipelines) RemoteMachine(authorizedKeys *dagger.File, hostKey *dagger.Secret) *dagger.Service {
	const hostKeyFile = "/run/secrets/host_key"
	return p.Microsandbox().
		With(p.install("openssh-server")).
		With(p.install("curl")). // with which agents are downloaded
		WithExec([]string{"mkdir", "-p", "/run/sshd"}).
		WithFile("/root/.ssh/authorized_keys", authorizedKeys, dagger.ContainerWithFileOpts{Permissions: 0o600}).
		WithMountedSecret(hostKeyFile, hostKey).
		WithExposedPort(sshPort).
		AsService(dagger.ContainerAsServiceOpts{
			Args: []string{
				"/usr/sbin/sshd", "-D", "-e", "-h", hostKeyFile, "-o", "UseDNS=no", "-o", "PasswordAuthentication=no",
				"-o", "KbdInteractiveAuthentication=no", "-o", "PermitRootLogin=prohibit-password",
			},
			InsecureRootCapabilities: true, // the KVM device
		})
}

// fixtures is a container with Parity's programs in its PATH, and no more: fixtures need no machine.
func (p Pipelines) fixtures() *dagger.Container { return p.withPrograms(p.Debian()) }
