"""The layer between our clients and the SDKs of vendors, which come from one generator.

    adapter, on import          Target(load=load_sdk, base_url=..., listing=Listing("/models"), ...)
    adapter, on the first call  load_sdk() -> Sdk, in a module that imports the vendor's SDK
    adapter, each call          await open_wire(target, path, asked) -> Wire

`target` is safe to import anywhere; `connection`, `errors` and `transport` import httpx2 and are
loaded with the first call.
"""
