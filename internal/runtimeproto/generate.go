package runtimeproto

// The generated files are committed. To make them again: `apt-get install protobuf-compiler`, then `go generate ./internal/runtimeproto`.
//
//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative runtime.proto"
