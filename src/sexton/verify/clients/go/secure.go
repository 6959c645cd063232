package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// secured is how the client gets in; what is missing is not wanted.
type secured struct {
	Login *login      `json:"login"`
	TLS   *encryption `json:"tls"`
}

type login struct {
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
}

// encryption has certificates and a key as PEM.
type encryption struct {
	Trusted    string `json:"trusted"` // nothing: those that the system trusts
	Chain      string `json:"chain"`
	Key        string `json:"key"`
	ChecksHost bool   `json:"checks_host"`
}

func (it secured) options() ([]kgo.Opt, error) {
	var found []kgo.Opt
	if it.Login != nil {
		switch it.Login.Mechanism {
		case "PLAIN":
			found = append(found, kgo.SASL(plain.Auth{User: it.Login.User, Pass: it.Login.Password}.AsMechanism()))
		case "SCRAM-SHA-256":
			found = append(found, kgo.SASL(scram.Auth{User: it.Login.User, Pass: it.Login.Password}.AsSha256Mechanism()))
		case "SCRAM-SHA-512":
			found = append(found, kgo.SASL(scram.Auth{User: it.Login.User, Pass: it.Login.Password}.AsSha512Mechanism()))
		default:
			return nil, fmt.Errorf("no such mechanism: %s", it.Login.Mechanism)
		}
	}
	if it.TLS != nil {
		config, err := it.TLS.config()
		if err != nil {
			return nil, err
		}
		found = append(found, kgo.DialTLSConfig(config))
	}
	return found, nil
}

func (it encryption) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if it.Trusted != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(it.Trusted)) {
			return nil, errors.New("no trusted certificate could be read")
		}
	}
	if it.Chain != "" {
		own, err := tls.X509KeyPair([]byte(it.Chain), []byte(it.Key))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	if !it.ChecksHost {
		config.InsecureSkipVerify = true // the name with it: who has signed is looked at all the same
		config.VerifyConnection = func(state tls.ConnectionState) error { return isTrusted(state, config.RootCAs) }
	}
	return config, nil
}

func isTrusted(state tls.ConnectionState, roots *x509.CertPool) error {
	others := x509.NewCertPool()
	for _, each := range state.PeerCertificates[1:] {
		others.AddCert(each)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others})
	return err
}
