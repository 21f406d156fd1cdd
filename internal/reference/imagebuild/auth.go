package imagebuild

import (
	"fmt"
	"os"

	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// pullAuth gives the login for a reference, as the engine takes it; empty if the user has none.
func pullAuth(ref string) (string, error) {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return "", err
	}
	auth, err := authn.DefaultKeychain.Resolve(reference.Context())
	if err != nil {
		return "", fmt.Errorf("the login for %s: %w", reference.Context().RegistryStr(), err)
	}
	if auth == authn.Anonymous {
		return "", nil
	}
	a, err := auth.Authorization()
	if err != nil {
		return "", fmt.Errorf("the login for %s: %w", reference.Context().RegistryStr(), err)
	}
	return authconfig.Encode(registry.AuthConfig{Username: a.Username, Password: a.Password, Auth: a.Auth,
		IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken, ServerAddress: reference.Context().RegistryStr()})
}

// buildAuths gives all logins of the user's Docker config: which one a build needs is in its Dockerfile.
func buildAuths() (map[string]registry.AuthConfig, error) {
	file, err := config.Load(os.Getenv("DOCKER_CONFIG")) // empty is the user's usual one
	if err != nil {
		return nil, fmt.Errorf("the Docker config: %w", err)
	}
	all, err := file.GetAllCredentials()
	if err != nil {
		return nil, fmt.Errorf("the logins of the Docker config: %w", err)
	}
	auths := map[string]registry.AuthConfig{}
	for host, a := range all {
		auths[host] = registry.AuthConfig{Username: a.Username, Password: a.Password, Auth: a.Auth,
			IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken, ServerAddress: a.ServerAddress}
	}
	return auths, nil
}
