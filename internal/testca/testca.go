// Package testca makes the certificates of a test: a CA of its own, and what serves TLS with a certificate of that CA.
package testca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"time"
)

// validBefore and validFor bound the certificates. The clock of an emulated machine may be behind.
const (
	validBefore = time.Hour
	validFor    = 24 * time.Hour
)

// CA is a CA that only this process has. Its certificates are valid for a day.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// New makes a CA with a name. Two that are to be told apart need two names: a TLS client looks a CA up by it.
func New(name string) (*CA, error) {
	now := time.Now()
	ca := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-validBefore),
		NotAfter:              now.Add(validFor),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &CA{certificate: ca, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// PEM is the CA's certificate.
func (c *CA) PEM() []byte { return bytes.Clone(c.pem) }

// Serve gives what serves TLS as a host with the names and addresses, with a certificate of the CA. Name is whose it is, for people.
func (c *CA) Serve(name string, names []string, addresses []netip.Addr) (*tls.Config, error) {
	leaf := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		NotBefore:   c.certificate.NotBefore,
		NotAfter:    c.certificate.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    names,
	}
	for _, a := range addresses {
		leaf.IPAddresses = append(leaf.IPAddresses, net.IP(a.AsSlice()))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, c.certificate, key.Public(), c.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}
