package sshserver

import (
	"slices"

	"golang.org/x/crypto/ssh"
)

// ClientConfig is a client's configuration for a byte stream that is itself the trust (see the package's documentation): no
// authentication, the host key as the caller has it, and the algorithms that cost least where AES and large keys are slow, as
// under an emulator.
func ClientConfig(hostKey ssh.HostKeyCallback) *ssh.ClientConfig {
	known := ssh.SupportedAlgorithms()
	return &ssh.ClientConfig{
		Config: ssh.Config{
			KeyExchanges: first(ssh.KeyExchangeCurve25519, known.KeyExchanges),
			Ciphers:      first(ssh.CipherChaCha20Poly1305, known.Ciphers),
		},
		User:            "root",
		HostKeyCallback: hostKey,
	}
}

// first is list with the preferred one at its head.
func first(preferred string, list []string) []string {
	return append([]string{preferred}, slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == preferred })...)
}
